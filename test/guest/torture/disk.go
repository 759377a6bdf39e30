package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// disk is two files of blocks. The even blocks are written directly, the odd ones through the page
// cache. All reads bypass the page cache.
type disk struct {
	shape
	direct [2]*os.File // opened with O_DIRECT: of the even and the odd blocks
	cached *os.File    // of the odd blocks
	buf    []byte      // one page, aligned, of the writer
	page   []byte      // one page, of the verification
	view   [2][]byte   // readAhead bytes of each file, aligned, of the verification
	viewed [2]int      // index of each view, in units of readAhead; -1: none
}

// readAhead is the size of a verification's direct reads: each request takes an emulated host
// inside another one milliseconds.
const readAhead = 64 * pageSize

// syncEvery is how many blocks are written through the page cache before it is flushed. So at any
// instant there are also blocks that are only in the guest's memory.
const syncEvery = 16

// openDisk makes the files in dir, with every block as before its first write.
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

// get reads block b past the page cache into p, which is aligned.
func (d *disk) get(b int, p []byte) error {
	_, err := d.direct[b%2].ReadAt(p, int64(b/2)*pageSize)
	return err
}

// overwrite is the function overwrite for a block.
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

// forget makes the next verification read everything again.
func (d *disk) forget() { d.viewed = [2]int{-1, -1} }

// read returns block b for a verification. It also checks that the page cache, if it has the block,
// has the same content as the disk.
//
// Preconditions: nothing was written since forget.
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
