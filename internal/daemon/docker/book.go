package docker

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/vmpool"
)

// book has the containers of this daemon, by the ids of their sandboxes. It stores the changing
// part of a container in a file, from which a later daemon reads it.
type book struct {
	dir string

	mu      sync.Mutex
	all     map[string]*container
	pending map[givenName]bool // names that clients are giving to containers at this time
}

// givenName is a name that a client gives to a container, with the client's prefix.
type givenName struct{ prefix, name string }

// Suffixes of the names of a container's files.
const (
	suffix    = ".json" // suffix of the record
	logSuffix = ".log"  // suffix of the file with output
)

// maxRecord bounds the record of a container, in bytes.
const maxRecord = 64 << 10

// openBook reads the records in a directory. If the directory is missing, openBook makes it. A
// power failure may damage a record. openBook then assumes that the container has exited and has no
// name.
func openBook(dir string, log *slog.Logger) (*book, error) {
	b := &book{dir: dir, all: make(map[string]*container), pending: make(map[givenName]bool)}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := atomicfile.Clean(dir); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), suffix)
		if !ok || !vmpool.IsID(id) {
			continue
		}
		c := b.newContainer(id)
		if c.state, err = readState(filepath.Join(dir, e.Name())); err != nil {
			log.Error("the record of a container is damaged", "error", err)
			c.state = state{Status: exited, ExitCode: exitUnknown, Error: "the record of the container is damaged"}
		}
		b.all[id] = c
	}
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), logSuffix); !ok || !vmpool.IsID(id) || b.all[id] != nil {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			log.Error("remove the output of a container that is gone", "error", err)
		}
	}
	return b, nil
}

// newContainer returns a container. The file with its output may exist already.
func (b *book) newContainer(id string) *container {
	c := newContainer(id)
	c.out.file = filepath.Join(b.dir, id+logSuffix)
	_, err := os.Stat(c.out.file)
	c.out.stored = err == nil
	return c
}

// readAtMost reads a file. It returns an error if the file has more bytes than the limit.
func readAtMost(path string, limit int64) ([]byte, error) {
	i, err := os.Stat(path)
	if err == nil && i.Size() > limit {
		err = fmt.Errorf("%s has %d bytes: want at most %d", path, i.Size(), limit)
	}
	if err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

func readState(path string) (s state, err error) {
	p, err := readAtMost(path, maxRecord)
	if err != nil {
		return s, err
	}
	c, err := record.ParseContainer(path, p)
	if err != nil {
		return s, err
	}
	switch c.Status {
	case "", created, running, exited:
		return *c, nil
	}
	return s, fmt.Errorf("%s: status %.50q: want created, running or exited", path, c.Status)
}

// of(i) returns the container of a sandbox. If the book does not have the container, of(i) adds it.
func (b *book) of(i sandbox.Info) *container {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.all[i.ID]
	if c == nil {
		c = b.newContainer(i.ID)
		if ownSpec(i) != nil { // the container is being created, or an earlier daemon ended before it wrote the record
			c.state.Status = created
		}
		b.all[i.ID] = c
	}
	return c
}

// list returns all containers in the book.
func (b *book) list() (list []*container) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.all {
		list = append(list, c)
	}
	return list
}

// reserve keeps other requests from giving a name to a container, until the returned function is
// called. It returns false if another request is giving a container this name.
func (b *book) reserve(n givenName) (release func(), ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pending[n] {
		return nil, false
	}
	b.pending[n] = true
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.pending, n)
	}, true
}

// setName gives a container a name that was reserved.
func (b *book) setName(c *container, n givenName) error {
	if err := b.change(c, func(s *state) { s.Name, s.Prefix = n.name, n.prefix }); err != nil {
		return err
	}
	if _, gone, _ := c.now(); gone {
		return noContainer(n.name)
	}
	return nil
}

// change changes the state of a container, first in its file and then in memory.
func (b *book) change(c *container, f func(*state)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := c.state
	f(&next)
	next.Error = shortened(next.Error)
	if err := b.writeLocked(c, &next); err != nil {
		return err
	}
	c.state = next
	c.notifyLocked()
	return nil
}

// note is like change, but for a change that has happened already. If the file cannot be written,
// the change still applies, but the next daemon will not know it.
func (b *book) note(c *container, f func(*state)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.state)
	c.state.Error = shortened(c.state.Error)
	c.notifyLocked()
	return b.writeLocked(c, &c.state)
}

// maxError bounds the error in a record, in bytes. Errors quote commands.
const maxError = 1 << 10

func shortened(text string) string {
	if len(text) <= maxError {
		return text
	}
	return strings.ToValidUTF8(text[:maxError], "")
}

// writeLocked writes the file of a container. If the container is gone, it does nothing. The caller
// holds c.mu.
func (b *book) writeLocked(c *container, s *state) error {
	if c.gone {
		return nil
	}
	p, err := record.EncodeContainer(s)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(b.dir, c.id+suffix), p, 0o600)
}

// drop forgets a container whose sandbox has been deleted, and removes its files. It returns the
// container, or nil if the container was not known. If a concurrent call is removing the files,
// drop waits for that call, and returns nil.
func (b *book) drop(id string) (*container, error) {
	b.mu.Lock()
	c := b.all[id]
	b.mu.Unlock()
	if c == nil {
		return nil, nil
	}
	first, err := c.discard(filepath.Join(b.dir, id+suffix))
	b.mu.Lock()
	delete(b.all, id)
	b.mu.Unlock()
	if !first {
		return nil, nil
	}
	return c, err
}

// discard ends a container and removes its output and its record. It reports whether this was the first call. The next
// daemon removes files that remain after an error.
func (c *container) discard(file string) (first bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return false, nil
	}
	c.gone = true
	c.notifyLocked()
	c.out.rush(nil)
	c.out.end()
	err = c.out.discard()
	if failed := os.Remove(file); !errors.Is(failed, fs.ErrNotExist) {
		err = errors.Join(err, failed)
	}
	return true, err
}
