package blk

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/disklayer"
)

const cluster = disklayer.ClusterSize

// Overlay is a disk that consists of files: a raw immutable base, immutable layers above the base,
// and a private top. All writes change the top. A read takes each cluster from the topmost file
// that has the cluster. The base has all clusters; clusters beyond the end of its file are zero.
//
// Data is always written before the bit that makes the data visible, so the top is a valid layer
// even if the process is killed. An Overlay syncs nothing. The store syncs layers, but a reboot may
// lose the top.
//
// An Overlay is the disk of one device and is not safe for concurrent use.
type Overlay struct {
	size   uint64
	base   *os.File
	baseSz uint64
	layers []*disklayer.Layer // lowest first, the top last
	top    *disklayer.Layer

	rest    [][]byte // part of a request that is not processed yet
	part    [][]byte // part of rest that the next system call processes
	scratch []byte   // buffer of one cluster, for partial writes
}

// NewOverlay returns a disk over files: first the base, then layers. The last layer is the writable
// top. The size is a multiple of 512, and each layer must be for a disk of that size. The Overlay
// owns the files, even after an error.
func NewOverlay(files []*os.File, size uint64) (*Overlay, error) {
	o := &Overlay{size: size}
	if len(files) > 0 {
		o.base = files[0]
	}
	if err := o.open(files); err != nil {
		for _, f := range files[min(len(files), 1+len(o.layers)):] {
			_ = f.Close()
		}
		_ = o.Close()
		return nil, err
	}
	return o, nil
}

func (o *Overlay) open(files []*os.File) error {
	if len(files) < 2 {
		return fmt.Errorf("open disk: %d files, want at least a base image and a top", len(files))
	}
	if o.size == 0 || o.size%sectorSize != 0 || o.size > disklayer.MaxSize {
		return fmt.Errorf("open disk: size %d, want a positive multiple of %d", o.size, sectorSize)
	}
	info, err := o.base.Stat()
	if err != nil {
		return fmt.Errorf("open disk: base image: %w", err)
	}
	o.baseSz = uint64(info.Size())
	for _, f := range files[1:] {
		if err := o.push(f); err != nil {
			return fmt.Errorf("open disk: %w", err)
		}
	}
	o.top = o.layers[len(o.layers)-1]
	return nil
}

// push opens f as the new topmost layer.
func (o *Overlay) push(f *os.File) error {
	l, err := o.openLayer(f)
	if err == nil {
		o.layers = append(o.layers, l)
	}
	return err
}

// openLayer opens f, which must be a layer of this disk's size.
func (o *Overlay) openLayer(f *os.File) (*disklayer.Layer, error) {
	l, err := disklayer.Open(f)
	if err != nil {
		return nil, err
	}
	if l.Size() != o.size {
		return nil, errors.Join(fmt.Errorf("layer %s is of a disk of %d bytes, want %d", f.Name(), l.Size(), o.size),
			l.Close())
	}
	return l, nil
}

// swap is a prepared change of the top. Either commit or cancel must be called.
type swap struct {
	disk        *Overlay
	frozen, top *disklayer.Layer
}

// prepareSwap prepares a swap that makes the top an immutable layer and puts newTop above it. It
// does everything that can fail, and changes nothing. The file newTop must be an empty layer of the
// same size. In frozen, the caller passes the file of the present top, open for reading only.
//
// Until commit, and after an error, the caller owns both files. After commit, the Overlay owns
// them. By then, it has closed the writable descriptor of the former top, and it reads that file
// through the descriptor frozen, so this process can no longer change the file. A swap copies no
// data.
func (o *Overlay) prepareSwap(newTop, frozen *os.File) (s *swap, err error) {
	s = &swap{disk: o}
	if err := sameFile(o.top.File(), frozen); err != nil {
		return nil, fmt.Errorf("swap top: %w", err)
	}
	if s.frozen, err = o.openLayer(frozen); err != nil {
		return nil, fmt.Errorf("swap top: %w", err)
	}
	if s.top, err = o.openLayer(newTop); err != nil {
		return nil, errors.Join(fmt.Errorf("swap top: %w", err), s.frozen.Close())
	}
	return s, nil
}

// commit swaps the top.
func (s *swap) commit() {
	o := s.disk
	old := o.top
	o.layers[len(o.layers)-1], o.top = s.frozen, s.top
	o.layers = append(o.layers, s.top)
	_ = old.Close() // an error does not matter, because all data is already in the file
	_ = old.File().Close()
}

// cancel leaves the disk unchanged. The caller of prepareSwap owns its files.
func (s *swap) cancel() {
	_, _ = s.frozen.Close(), s.top.Close() // both are unused
}

// sameFile returns an error unless both descriptors refer to the same file.
func sameFile(a, b *os.File) error {
	first, err := a.Stat()
	if err != nil {
		return err
	}
	second, err := b.Stat()
	if err != nil {
		return err
	}
	if !os.SameFile(first, second) {
		return errors.New("the file to read the former top through is a different file")
	}
	return nil
}

// Merge replaces and closes several layers. The lowest of these layers has the given number
// (first), and the highest is just below the top. The given layer (merged) has their combined
// content, and replaces them. The Overlay then owns the layer's file. After an error the disk is
// unchanged and the caller still owns the file.
func (o *Overlay) Merge(first int, merged *os.File) error {
	last := len(o.layers) - 1 // the top
	if first < 0 || first >= last {
		return fmt.Errorf("merge layers from %d: %d are below the top", first, max(last, 0))
	}
	if err := o.push(merged); err != nil {
		return fmt.Errorf("merge layers: %w", err)
	}
	old := slices.Clone(o.layers[first:last])
	o.layers = append(o.layers[:first], o.layers[last+1], o.top)
	for _, l := range old {
		_ = l.Close() // an error does not matter, because the layer is no longer needed
		_ = l.File().Close()
	}
	return nil
}

// Close closes all files.
func (o *Overlay) Close() error {
	var errs []error
	for _, l := range o.layers {
		errs = append(errs, l.Close(), l.File().Close())
	}
	if o.base != nil {
		errs = append(errs, o.base.Close())
	}
	o.layers, o.top, o.base = nil, nil, nil
	return errors.Join(errs...)
}

// Size returns the size of the disk in bytes.
func (o *Overlay) Size() uint64 { return o.size }

// ReadV fills the views with the data that begins at the byte offset off. The caller must have
// checked that the range is within the disk.
func (o *Overlay) ReadV(views [][]byte, off uint64) error {
	o.rest = append(o.rest[:0], views...)
	for left := length(views); left > 0; {
		file, n := o.locate(off, left)
		part := o.take(n)
		if err := o.readPart(file, part, off); err != nil {
			return err
		}
		off, left = off+n, left-n
	}
	return nil
}

// locate returns the file that has the byte at off, or nil if no file has it. A byte in no file is
// zero. locate also returns how many bytes, beginning at off, are in the same file (or in no file),
// up to the given limit (left).
func (o *Overlay) locate(off, left uint64) (*os.File, uint64) {
	first := off / cluster
	count := (off+left+cluster-1)/cluster - first
	for i := len(o.layers) - 1; i >= 0; i-- {
		has, n := o.layers[i].Run(first, count)
		count = min(count, n)
		if has {
			return o.layers[i].File(), min(left, (first+count)*cluster-off)
		}
	}
	left = min(left, (first+count)*cluster-off)
	if off >= o.baseSz {
		return nil, left
	}
	return o.base, min(left, o.baseSz-off)
}

func (o *Overlay) readPart(f *os.File, part [][]byte, off uint64) error {
	if f == nil {
		for _, v := range part {
			clear(v)
		}
		return nil
	}
	return transfer(part, off, func(views [][]byte, off int64) (int, error) {
		if len(views) == 1 {
			return unix.Pread(fd(f), views[0], off)
		}
		return unix.Preadv(fd(f), views, off)
	})
}

// take moves n bytes from the front of o.rest to o.part, and returns o.part.
func (o *Overlay) take(n uint64) [][]byte {
	o.part = o.part[:0]
	for n > 0 {
		v := o.rest[0]
		if k := uint64(len(v)); k <= n {
			o.part, o.rest, n = append(o.part, v), o.rest[1:], n-k
			continue
		}
		o.part, o.rest[0], n = append(o.part, v[:n]), v[n:], 0
	}
	return o.part
}

// transfer calls rw until all bytes of the views are transferred. If a file ends too early, it has
// been truncated, and transfer returns an error.
func transfer(views [][]byte, off uint64, rw func([][]byte, int64) (int, error)) error {
	for len(views) > 0 {
		n, err := rw(views, int64(off))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		case n == 0:
			return unix.EIO
		}
		off += uint64(n)
		for n > 0 {
			if k := len(views[0]); k <= n {
				views, n = views[1:], n-k
				continue
			}
			views[0], n = views[0][n:], 0
		}
	}
	return nil
}

func length(views [][]byte) (n uint64) {
	for _, v := range views {
		n += uint64(len(v))
	}
	return n
}

func fd(f *os.File) int { return int(f.Fd()) }

func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
