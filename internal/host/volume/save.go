package volume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/host/writers"
)

// lock returns a volume that is ready, and holds its lock until the caller calls unlock. The error is an
// *Error, or the error of ctx if ctx ends before the lock is free.
func (s *Store) lock(ctx context.Context, name string) (v *volume, unlock func(), err error) {
	s.mu.Lock()
	v = s.byName[name]
	s.mu.Unlock()
	if v != nil {
		select {
		case v.file <- struct{}{}:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
		unlock = func() { <-v.file }
	}
	s.mu.Lock()
	there := v != nil && v.phase == ready && s.byName[name] == v // it may have been removed during the wait
	unread := s.unread[name]
	s.mu.Unlock()
	if there {
		return v, unlock, nil
	}
	if v != nil {
		unlock()
	}
	return nil, nil, &Error{Name: name, Unread: unread}
}

// errNoWriter is the error of lockFor if the volume has no writer.
var errNoWriter = errors.New("no sandbox writes to it")

// lockFor is like lock, but the given sandbox must be the volume's writer. If another sandbox is
// the writer, the error is an *InUseError.
func (s *Store) lockFor(ctx context.Context, name, sandbox string) (v *volume, unlock func(), err error) {
	if v, unlock, err = s.lock(ctx, name); err != nil {
		return nil, nil, err
	}
	switch {
	case v.Writer == nil:
		err = fmt.Errorf("volume %q: %w", name, errNoWriter)
	case v.Writer.SandboxID != sandbox:
		err = &InUseError{Name: name, SandboxID: v.Writer.SandboxID}
	}
	if err != nil {
		unlock()
		return nil, nil, err
	}
	return v, unlock, nil
}

// save changes the record of a volume. If the volume is not private, the change is durable.
// Preconditions: the volume is locked.
func (s *Store) save(v *volume, change func(*record.Volume)) error {
	changed := v.Volume
	changed.Layers = slices.Clone(v.Layers)
	if v.Writer != nil {
		w := *v.Writer
		changed.Writer = &w
	}
	change(&changed)
	p, err := record.EncodeVolume(&changed)
	if err != nil {
		return err
	}
	path, write := filepath.Join(v.dir, recordFile), atomicfile.WriteDurable
	if v.private {
		write = atomicfile.Write
	}
	if err = write(path, p, 0o600); err != nil {
		// If the record was replaced, and only the flush failed, the files that the new record
		// names must stay.
		if now, read := os.ReadFile(path); read != nil || !bytes.Equal(now, p) {
			return err
		}
	}
	s.mu.Lock()
	v.Volume, v.ended = changed, v.ended && changed.Writer != nil
	s.mu.Unlock()
	s.step("changed the record")
	return err
}

// drop removes files of a volume, except the files that its record names. The next start removes
// files that cannot be removed now, for example because a VM has them open for writing.
func (s *Store) drop(v *volume, names ...string) {
	for _, name := range names {
		if !slices.Contains(v.Files(), name) {
			_ = writers.Remove(filepath.Join(v.dir, name), 0)
		}
	}
}
