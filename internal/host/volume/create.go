package volume

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/format/ext4"
	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/admit"
	"github.com/forkd/forkd/internal/host/hardlink"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/ledger"
)

// Request describes a new volume.
type Request struct {
	Name    string // must be a valid tag
	Owner   string // owner whose quota the volume counts against
	SizeMiB uint64
	Labels  map[string]string
}

func (r *Request) check() error {
	if err := snapshot.CheckTag(r.Name); err != nil {
		return &invalid.Error{Field: "name", Reason: err.Error()}
	}
	if r.SizeMiB < MinSize>>20 || r.SizeMiB > MaxSize>>20 {
		return invalid.Errorf("size_mib", "%d: want %d to %d", r.SizeMiB, MinSize>>20, MaxSize>>20)
	}
	return ledger.CheckLabels(r.Labels)
}

// Create makes an empty volume. When Create returns nil, the volume survives a power failure. After
// an error, nothing is left of the new volume. The error is an *Error if the name is taken, an
// *invalid.Error if the request is invalid, an *admit.Error if the owner's quota or the host has no
// room, or an error of the file system.
func (s *Store) Create(req Request) (Info, error) {
	v, err := s.reserve(req)
	if err != nil {
		return Info{}, err
	}
	return s.finish(v, func(dir string) error { return s.makeBase(v, dir) })
}

// Snapshot makes a volume with the content and the size of another volume, which is given by its
// name. Both volumes then have hard links to the same immutable files. Snapshot ignores the size in
// the request. The error is one of the errors of Create, or an *InUseError if the source volume has
// a writer.
func (s *Store) Snapshot(ctx context.Context, from string, req Request) (Info, error) {
	source, unlock, err := s.lock(ctx, from)
	if err != nil {
		return Info{}, err
	}
	defer unlock()
	if err := s.releaseEnded(ctx, source); err != nil {
		return Info{}, err
	}
	if w := source.Writer; w != nil {
		return Info{}, &InUseError{Name: from, SandboxID: w.SandboxID}
	}
	req.SizeMiB = source.SizeBytes >> 20
	v, err := s.reserve(req)
	if err != nil {
		return Info{}, err
	}
	v.Layers = slices.Clone(source.Layers)
	return s.finish(v, func(dir string) error {
		for _, f := range append([]string{baseFile}, v.Layers...) {
			if err := hardlink.Link(filepath.Join(source.dir, f), filepath.Join(dir, f)); err != nil {
				return err
			}
		}
		s.step("linked the files")
		return nil
	})
}

// finish makes a volume that reserve has returned. It calls fill, which makes the files in a
// directory. After an error, the name is free again.
func (s *Store) finish(v *volume, fill func(dir string) error) (Info, error) {
	err := s.make(v, fill)
	s.mu.Lock()
	if err == nil {
		v.phase = ready
	} else {
		delete(s.byName, v.Name)
	}
	s.mu.Unlock()
	if err != nil {
		return Info{}, fmt.Errorf("create volume %q: %w", v.Name, err)
	}
	return s.Get(v.Name)
}

// reserve takes the name of a new volume, and room in its owner's quota.
func (s *Store) reserve(req Request) (*volume, error) {
	if err := req.check(); err != nil {
		return nil, err
	}
	v := s.newVolume(&record.Volume{ID: snapshot.VolumeID + snapshot.NewID(), Name: req.Name, Owner: req.Owner,
		Created: time.Now().UTC(), SizeBytes: req.SizeMiB << 20, Labels: req.Labels}, creating)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byName[v.Name] != nil || s.unread[v.Name] {
		return nil, &Error{Name: v.Name, Exists: true, Unread: s.unread[v.Name]}
	}
	count, total := 0, uint64(0)
	for _, other := range s.byName {
		if other.Owner == v.Owner {
			count, total = count+1, total+other.SizeBytes
		}
	}
	if count >= MaxPerOwner {
		return nil, &admit.Error{Code: admit.CodeVolumeQuota, Reason: fmt.Sprintf(
			"%s has %d volumes, the maximum for one client; remove some", v.Owner, count)}
	}
	if most := s.cfg.Most; most > 0 && total+v.SizeBytes > most {
		return nil, &admit.Error{Code: admit.CodeVolumeQuota, Reason: fmt.Sprintf(
			"a volume of %d MiB would exceed the maximum of %d MiB for the volumes of %s, which have %d MiB; remove some, "+
				"choose a smaller size, or raise the daemon's --max-volumes-gib", v.SizeBytes>>20, most>>20, v.Owner, total>>20)}
	}
	s.byName[v.Name] = v
	return v, nil
}

// make calls fill, which makes the files of a new volume in a temporary directory. Then it renames
// the directory to the volume's name.
func (s *Store) make(v *volume, fill func(dir string) error) error {
	var undo cleanup.Stack
	defer undo.Run()
	dir := filepath.Join(s.cfg.Dir, newPrefix+v.ID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	undo.Add(func() { _ = os.RemoveAll(dir) }) // the next start removes what stays
	s.step("made the directory")
	if err := s.checkRoom(dir, 0); err != nil {
		return err
	}
	if err := fill(dir); err != nil {
		return err
	}
	p, err := record.EncodeVolume(&v.Volume)
	if err != nil {
		return err
	}
	if err := atomicfile.WriteDurable(filepath.Join(dir, recordFile), p, 0o600); err != nil {
		return err
	}
	s.step("wrote the record")
	if err := os.Rename(dir, v.dir); err != nil {
		return err
	}
	undo.Add(func() { _, _ = s.bury(v) }) // the first error is reported
	s.step("renamed the directory")
	if err := atomicfile.SyncDir(s.cfg.Dir); err != nil {
		return err
	}
	undo.Release()
	return nil
}

// makeBase writes the base image, an empty file system.
func (s *Store) makeBase(v *volume, dir string) (err error) {
	f, err := os.OpenFile(filepath.Join(dir, baseFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o400)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	s.step("made the base image")
	var uuid [16]byte
	_, _ = rand.Read(uuid[:])                              // never fails
	uuid[6], uuid[8] = uuid[6]&0xf|0x40, uuid[8]&0x3f|0x80 // version 4, as RFC 9562 defines it
	if err := f.Truncate(int64(v.SizeBytes)); err != nil {
		return err
	}
	if err := ext4.FormatJournaled(f, int64(v.SizeBytes), uuid); err != nil {
		return err
	}
	s.step("wrote the base image")
	return f.Sync()
}

// checkRoom returns an error if a file system has too little room for files of this many bytes.
func (s *Store) checkRoom(dir string, bytes uint64) error {
	if s.cfg.Room == nil {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return s.cfg.Room(d, bytes)
}

// diskBytes returns how many bytes the files in a directory take on the disk.
func diskBytes(dir string) (total uint64, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since ReadDir
		}
		if err != nil {
			return total, err
		}
		total += onDisk(info)
	}
	return total, err
}

// onDisk returns how many bytes a file takes on the disk.
func onDisk(info fs.FileInfo) uint64 {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	return uint64(st.Blocks) * 512
}
