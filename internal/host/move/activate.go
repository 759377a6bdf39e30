package move

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/format/record"
)

// Activate makes a sandbox that has arrived an ordinary suspended sandbox of this host. The key
// proves that the other host has given up the sandbox. A key works only once: if it was used
// before, Activate does nothing, even if the sandbox has since ended or moved on.
func (b *Book) Activate(id, key string) (m record.Move, err error) {
	return b.step(id, func(e *entry) error {
		lock := lockOf(key)
		switch {
		case e.Phase == "":
			return b.activated(id, lock)
		case e.Phase == record.MoveArriving && subtle.ConstantTimeCompare([]byte(lock), []byte(e.Lock)) == 1:
			return b.activate(e)
		case e.Phase != unread && b.isOpen(id, lock):
			return nil
		case e.Phase == record.MoveArriving:
			return conflict(id, "key: it is not the key that the other host reveals when it gives this sandbox up")
		}
		return e.other()
	})
}

func (b *Book) activate(e *entry) error {
	if err := b.complete(e.ID); err != nil {
		return err // the other host still has the files
	}
	if err := b.open(e.ID, e.Lock); err != nil {
		return err
	}
	b.cfg.Fault("open")
	if err := b.forget(e.ID); err != nil {
		return err
	}
	b.cfg.Fault("active")
	if err := b.adopt(e.ID); err != nil {
		return err
	}
	b.cfg.Done(Arrived)
	if e.unpin != nil {
		e.unpin()
	}
	return nil
}

// activated returns an error if a sandbox without a record was not activated with the key of a lock.
func (b *Book) activated(id, lock string) error {
	_, err := b.manager.Get(id)
	if err == nil || !b.isOpen(id, lock) || b.manager.Has(id) {
		return err
	}
	if err := b.adopt(id); !errors.Is(err, fs.ErrNotExist) {
		return err // nil: an earlier Activate has failed at this point
	}
	return nil // the sandbox has ended since
}

func (b *Book) adopt(id string) error {
	if err := b.manager.Adopt(id); err != nil {
		return fmt.Errorf("the sandbox has arrived, and can be used after a restart of the daemon: %w", err)
	}
	b.adopted(id)
	return nil
}

// mark is the path of an empty file. The file says that a sandbox was activated here with the key
// of a lock. The file is kept. Without it, someone who repeats the steps of a move would get a copy
// of a sandbox that has ended here, or that runs on the host to which it has moved since.
func (b *Book) mark(id, lock string) string { return filepath.Join(b.cfg.Dir, id+"."+lock+".opened") }

func (b *Book) isOpen(id, lock string) bool {
	_, err := os.Lstat(b.mark(id, lock))
	return !errors.Is(err, fs.ErrNotExist)
}

// open makes the mark of a lock durably.
func (b *Book) open(id, lock string) error {
	return atomicfile.WriteDurable(b.mark(id, lock), nil, 0o600)
}

// close removes the mark of a lock durably, if there is one. A sandbox whose record still says
// "arriving" has a mark if the daemon was killed right after it had made the mark.
func (b *Book) close(id, lock string) error {
	err := os.Remove(b.mark(id, lock))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, atomicfile.SyncDir(b.cfg.Dir))
}
