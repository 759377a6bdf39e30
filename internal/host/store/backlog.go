package store

import (
	"context"
	"github.com/forkd/forkd/internal/host/fileid"

	"github.com/forkd/forkd/internal/host/backlog"
)

// unflushed returns the layers that are to be written to disk. It omits layers of unnamed
// snapshots: such a layer may be only in RAM, but it is never written to disk, and counts as a
// layer of a line.
func (s *Store) unflushed() (list []backlog.Layer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.byTag {
		if e.AwaitsFlush() && e.manifest != nil {
			list = append(list, backlog.Layer{Owner: e.owner, Bytes: sizeLater(s.ramLayer(e.manifest.ID)), Err: e.flushErr})
		}
	}
	return list
}

// sizeLater returns a function that asks the file system how many bytes a file takes.
func sizeLater(path string) func() uint64 { return func() uint64 { return fileid.Blocks(path) } }

// ReserveRAM reserves room for the memory layer of a branch, see backlog.Backlog.Reserve. It is not
// called if Staging.Awaited is called for the branch.
func (s *Store) ReserveRAM(ctx context.Context, owner string, most uint64, exact func() (uint64, error)) (
	release func(), err error) {
	return s.backlog.Reserve(ctx, owner, most, exact)
}

func (s *Store) newBacklog() *backlog.Backlog {
	free := func() (uint64, error) {
		free, _, err := s.ramRoom()
		return free, err
	}
	return backlog.New(backlog.Host{Unflushed: s.unflushed, Lines: s.lines, FreeRAM: free, FreeDisk: s.Room,
		Cool: s.coolUntil})
}
