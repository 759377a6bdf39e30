package disklayer

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// Written finds the clusters that are in at least one of the layers. It calls yield(first, n) for
// each run of n such clusters, in ascending order. Like Merge, it does not map the layers. All
// layers must belong to disks of the same size. If ctx ends, Written stops and returns the error of
// ctx.
func Written(ctx context.Context, layers []*os.File, yield func(first, n uint64) error) error {
	sources := make([]*source, len(layers))
	for i, f := range layers {
		var err error
		if sources[i], err = openSource(f); err != nil {
			return err
		}
		defer sources[i].file.Close()
		if size := sources[i].size; size != sources[0].size {
			return fmt.Errorf("layer %d is of a disk of %d bytes, layer 0 of %d", i, size, sources[0].size)
		}
	}
	if len(sources) == 0 {
		return nil
	}
	offset, length, _ := Layout(sources[0].size)
	r := run{yield: yield, clusters: offset / ClusterSize}
	all, one := make([]byte, min(length, mergeBitmap)), make([]byte, min(length, mergeBitmap))
	for at := uint64(0); at < length; at += uint64(len(all)) {
		all = all[:min(length-at, mergeBitmap)]
		clear(all)
		for _, s := range sources {
			if err := errors.Join(ctx.Err(), s.read(one[:len(all)], offset+at)); err != nil {
				return err
			}
			for i, bits := range one[:len(all)] {
				all[i] |= bits
			}
		}
		if err := r.add(at*8, all); err != nil {
			return err
		}
	}
	return r.end()
}

// run collects clusters in ascending order, and joins them to runs.
type run struct {
	yield    func(first, n uint64) error
	clusters uint64 // number of clusters of the disk
	first, n uint64 // the run that has not been yielded yet
}

// add adds the clusters whose bits are set in bitmap. The first bit belongs to the cluster with the
// given number.
func (r *run) add(first uint64, bitmap []byte) error {
	end := min(uint64(len(bitmap))*8, r.clusters-min(first, r.clusters))
	for c := uint64(0); c < end; {
		n := ones(bitmap, c, end)
		if n == 0 {
			c++
			for c%8 == 0 && c < end && bitmap[c/8] == 0 { // most bytes are empty
				c += 8
			}
			continue
		}
		if r.n > 0 && r.first+r.n != first+c {
			if err := r.end(); err != nil {
				return err
			}
		}
		if r.n == 0 {
			r.first = first + c
		}
		r.n += n
		c += n
	}
	return nil
}

// end yields the last run.
func (r *run) end() error {
	if r.n == 0 {
		return nil
	}
	first, n := r.first, r.n
	r.n = 0
	return r.yield(first, n)
}
