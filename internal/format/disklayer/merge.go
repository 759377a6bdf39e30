package disklayer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Merge fills the empty layer file dst with the combined content of the given layers, which are
// ordered from the base up. It does not map their files, because a read would kill the daemon if
// another process truncated a mapped file. Holes stay holes, so clusters that a guest has discarded
// take no space. If ctx ends, Merge stops and returns the error of ctx.
func Merge(ctx context.Context, dst *os.File, layers []*os.File) error {
	if len(layers) == 0 {
		return fmt.Errorf("merge disk layers into %s: no layers", dst.Name())
	}
	sources := make([]*source, len(layers))
	for i, f := range layers {
		var err error
		if sources[i], err = openSource(f); err != nil {
			return fmt.Errorf("merge disk layers: %w", err)
		}
		defer sources[i].file.Close()
		if size := sources[i].size; size != sources[0].size {
			return fmt.Errorf("merge disk layers: layer %d is of a disk of %d bytes, layer 0 of %d", i, size, sources[0].size)
		}
	}
	if err := Format(dst, sources[0].size); err != nil {
		return err
	}
	merged, err := Open(dst) // no other process has it open yet
	if err != nil {
		return err
	}
	for _, s := range slices.Backward(sources) { // begin with the top, because a layer hides the layers below it
		if err := s.addTo(ctx, merged); err != nil {
			return errors.Join(fmt.Errorf("merge disk layers: %w", err), merged.Close())
		}
	}
	return merged.Close()
}

// source is a layer to merge.
type source struct {
	file *os.File
	name string
	size uint64 // size of the disk in bytes
	buf  []byte // buffer for data

	// Result of the latest search for data: the offset at which the search began (searched), the
	// offset of the first data (from), and the offset of the hole after this data (to).
	searched, from, to uint64
}

// Reopen opens the file of f again, for reading, with a new open file description. Processes that
// share an open file description can change each other's offset and flags, and can block each
// other's lseek(2) for ever by holding the lock of the description. So a VMM shares no open file
// description with the daemon or with other VMMs.
func Reopen(f *os.File) (*os.File, error) {
	own, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		return nil, fmt.Errorf("open %s once more: %w", f.Name(), err)
	}
	return own, nil
}

// openSource opens a layer for reading. A VMM may have the layer open at the same time.
func openSource(f *os.File) (*source, error) {
	own, err := Reopen(f)
	if err != nil {
		return nil, err
	}
	size, err := checkFooter(own)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open disk layer %s: %w", f.Name(), err), own.Close())
	}
	return &source{file: own, name: f.Name(), size: size}, nil
}

// Bytes per read of data and of the bitmap. Both are whole clusters.
const (
	mergeBitmap = 64 << 10
	mergeData   = 1 << 20
)

// addTo copies to dst all clusters of s that dst does not have.
func (s *source) addTo(ctx context.Context, dst *Layer) error {
	offset, length, _ := Layout(s.size)
	bitmap := make([]byte, min(length, mergeBitmap))
	s.buf = make([]byte, mergeData)
	for at := uint64(0); at < length; {
		if err := ctx.Err(); err != nil {
			return err
		}
		chunk := bitmap[:min(length-at, mergeBitmap)]
		if err := s.read(chunk, offset+at); err != nil {
			return err
		}
		if err := s.addClusters(ctx, dst, at*8, chunk); err != nil {
			return err
		}
		at += uint64(len(chunk))
	}
	return nil
}

// addClusters copies the clusters whose bits are set in a chunk of the bitmap. The first bit of the
// chunk belongs to the cluster with the given number.
func (s *source) addClusters(ctx context.Context, dst *Layer, first uint64, chunk []byte) error {
	clusters := min(uint64(len(chunk))*8, dst.clusters-min(first, dst.clusters))
	for c := uint64(0); c < clusters; {
		n := ones(chunk, c, clusters)
		if n == 0 {
			c++
			if c%8 == 0 { // skip an empty byte; most bytes are empty
				for c < clusters && chunk[c/8] == 0 {
					c += 8
				}
			}
			continue
		}
		for end := c + n; c < end; c += n {
			var has bool
			if has, n = dst.Run(first+c, end-c); has {
				continue
			}
			if err := s.copyTo(ctx, dst, first+c, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// ones returns how many bits in the range [at, end) are set before the first bit that is not set.
func ones(bitmap []byte, at, end uint64) uint64 {
	start := at
	for at < end {
		// The variable n counts set bits in this byte only, because the shift fills the top of the
		// byte with zeros, and the first zero ends the count.
		n := uint64(bits.TrailingZeros8(^(bitmap[at/8] >> (at % 8))))
		at += n
		if n == 0 || at%8 != 0 {
			break
		}
	}
	return min(at, end) - start
}

// copyTo copies the data of n clusters to the layer dst, and marks the clusters in dst. Before the
// call, these clusters are holes in dst.
func (s *source) copyTo(ctx context.Context, dst *Layer, first, n uint64) error {
	for at, end := first*ClusterSize, (first+n)*ClusterSize; at < end; {
		if err := errors.Join(ctx.Err(), s.find(at)); err != nil {
			return err
		}
		if at = max(at, s.from); at >= end {
			break
		}
		p := s.buf[:min(end-at, s.to-at, mergeData)]
		if err := s.read(p, at); err != nil {
			return err
		}
		if _, err := dst.file.WriteAt(p, int64(at)); err != nil {
			return err
		}
		at += uint64(len(p))
	}
	return dst.Set(first, n)
}

// find stores in s.from and s.to where the first data at or after an offset begins and ends. It
// does not search if these fields already describe this data.
func (s *source) find(at uint64) error {
	if s.searched <= at && at < s.to {
		return nil
	}
	from, err := unix.Seek(int(s.file.Fd()), int64(at), unix.SEEK_DATA)
	if err == nil {
		s.searched, s.from = at, uint64(from)
		from, err = unix.Seek(int(s.file.Fd()), from, unix.SEEK_HOLE)
		s.to = uint64(from)
	}
	if errors.Is(err, unix.ENXIO) || err == nil && s.to <= s.from { // cannot happen: the footer is data after all clusters
		return s.cutOff()
	}
	return err
}

func (s *source) cutOff() error {
	return fmt.Errorf("%w: %s was cut off while it was read", ErrFormat, s.name)
}

// read fills p with the bytes that begin at an offset of the file.
func (s *source) read(p []byte, at uint64) error {
	_, err := s.file.ReadAt(p, int64(at))
	if errors.Is(err, io.EOF) {
		return s.cutOff()
	}
	return err
}
