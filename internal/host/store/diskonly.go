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

// Boot opens the kernel and the initramfs with which a machine boots from the disk of the snapshot
// with the given tag. The caller must close both.
func (s *Store) Boot(tag string, b *snapshot.Boot) (kernel, initrd *os.File, err error) {
	if b == nil {
		return nil, nil, fmt.Errorf("snapshot %q: does not say what its parent booted from: bake it again", tag)
	}
	if kernel, err = s.openBase(b.Kernel); err != nil {
		return nil, nil, &DamagedError{Tag: tag, File: "kernel " + b.Kernel.Digest, Err: err}
	}
	if initrd, err = s.openBase(b.Initrd); err != nil {
		return nil, nil, &DamagedError{Tag: tag, File: "initramfs " + b.Initrd.Digest,
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
