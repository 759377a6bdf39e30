package store

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/snapshot"
)

// DiskOnlyError reports that an operation needs the memory of a snapshot, but the snapshot has
// none.
type DiskOnlyError struct{ Tag string }

func (e *DiskOnlyError) Error() string {
	return fmt.Sprintf("snapshot %q: has a disk and no memory: fork it, or boot a parent from it ('forkd build --from %s')",
		e.Tag, e.Tag)
}

// Boot opens the kernel and the initramfs with which a machine boots from the disk of a leased
// snapshot. The caller must close both.
func (s *Store) Boot(l *Lease) (kernel, initrd *os.File, err error) {
	m := l.Manifest()
	if m.Boot == nil {
		return nil, nil, fmt.Errorf("snapshot %q: does not say what its parent booted from: bake it again", m.Tag)
	}
	if kernel, err = s.openBase(m.Boot.Kernel); err != nil {
		return nil, nil, &DamagedError{Tag: m.Tag, File: "kernel " + m.Boot.Kernel.Digest, Err: err}
	}
	if initrd, err = s.openBase(m.Boot.Initrd); err != nil {
		return nil, nil, &DamagedError{Tag: m.Tag, File: "initramfs " + m.Boot.Initrd.Digest,
			Err: errors.Join(err, kernel.Close())}
	}
	return kernel, initrd, nil
}

// PublishDisk is like Publish, for a branch that has neither state nor memory. The snapshot is on
// disk before it becomes visible.
func (g *Staging) PublishDisk(m *snapshot.Manifest, disk []*os.File) (Info, error) {
	g.diskOnly, g.first = true, true
	info, err := g.Publish(m, nil, disk)
	if err == nil {
		_ = unix.Rmdir(g.store.layerDir(g.id)) // the directory is empty; after an error the next start removes it
	}
	return info, err
}
