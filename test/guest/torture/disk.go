package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// disk consists of two files of blocks. The even blocks are written directly, and the odd blocks
// through the page cache. Verifications read all blocks directly.
type disk struct {
	shape
	direct [2]*os.File // files of the even and of the odd blocks, opened with O_DIRECT
	cached *os.File    // file of the odd blocks
	buf    []byte      // one aligned page, for the writer
	page   []byte      // one aligned page, for the verification
	view   [2][]byte   // readAhead aligned bytes of each file, for the verification
	viewed [2]int      // index of the content of each view, in units of readAhead; -1: none
}

// readAhead is the size of a direct read by a verification. It is large because a request takes
// milliseconds if the emulated host runs inside another emulated host.
const readAhead = 64 * pageSize

// syncEvery is the number of blocks that are written through the page cache before it is flushed.
// So some blocks are always only in the guest's memory.
const syncEvery = 16

// openDisk makes the files in dir. It fills every block with the content for the time before the
// first write.
func openDisk(dir string, s shape) (*disk, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	d := &disk{shape: s}
	mem, err := unix.Mmap(-1, 0, 2*pageSize+2*readAhead, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map disk buffers: %w", err)
	}
	d.buf, d.page, mem = mem[:pageSize], mem[pageSize:2*pageSize], mem[2*pageSize:]
	d.view = [2][]byte{mem[:readAhead], mem[readAhead:]}
	d.forget()
	const create = os.O_RDWR | os.O_CREATE | os.O_TRUNC
	for i, name := range []string{"direct", "cached"} {
		path := filepath.Join(dir, name)
		if d.direct[i], err = os.OpenFile(path, create|unix.O_DIRECT, 0o600); err != nil {
			return nil, err
		}
	}
	if d.cached, err = os.OpenFile(filepath.Join(dir, "cached"), os.O_RDWR, 0); err != nil {
		return nil, err
	}
	for b := range s.blocks {
		fill(asWords(d.buf), s.pages+b, 0)
		if err := d.put(b); err != nil {
			return nil, err
		}
	}
	return d, errors.Join(d.direct[0].Sync(), d.cached.Sync())
}

func asWords(p []byte) []uint64 { return unsafe.Slice((*uint64)(unsafe.Pointer(&p[0])), len(p)/8) }

// put writes d.buf to block b.
func (d *disk) put(b int) error {
	f := d.direct[0]
	if b%2 == 1 {
		f = d.cached
	}
	_, err := f.WriteAt(d.buf, int64(b/2)*pageSize)
	return err
}

// get reads block b into p, which is aligned, bypassing the page cache.
func (d *disk) get(b int, p []byte) error {
	_, err := d.direct[b%2].ReadAt(p, int64(b/2)*pageSize)
	return err
}

// overwrite replaces the content of a block and checks the old content; see the function overwrite.
func (d *disk) overwrite(u int, old, seq uint64) (bad int, found uint64, err error) {
	b := u - d.pages
	if b%2 == 0 {
		err = d.get(b, d.buf)
	} else {
		_, err = d.cached.ReadAt(d.buf, int64(b/2)*pageSize)
	}
	if err != nil {
		return -1, 0, err
	}
	bad, found = overwrite(asWords(d.buf), u, old, seq)
	if err = d.put(b); err == nil && seq%syncEvery == 0 {
		err = unix.Fdatasync(int(d.cached.Fd()))
	}
	return bad, found, err
}

// forget makes the next verification read all blocks from the disk again.
func (d *disk) forget() { d.viewed = [2]int{-1, -1} }

// read returns block b for a verification. If the block is in the page cache, read also checks that
// the cache and the disk have the same content.
//
// Preconditions: nothing was written since the last call of forget.
func (d *disk) read(b int, p []uint64) error {
	file, off := b%2, b/2*pageSize
	if d.viewed[file] != off/readAhead {
		d.viewed[file] = off / readAhead
		size := min(readAhead, (d.blocks+1-file)/2*pageSize-off/readAhead*readAhead)
		if _, err := d.direct[file].ReadAt(d.view[file][:size], int64(off/readAhead*readAhead)); err != nil {
			return err
		}
	}
	copy(p, asWords(d.view[file][off%readAhead:][:pageSize]))
	if file == 0 {
		return nil
	}
	if _, err := d.cached.ReadAt(d.page, int64(off)); err != nil {
		return err
	}
	for k, w := range asWords(d.page) {
		if p[k] != w {
			return fmt.Errorf("on disk %s, in the page cache %s", origin(p, d.pages+b), origin(asWords(d.page), d.pages+b))
		}
	}
	return nil
}
