package blk

import (
	"errors"

	"golang.org/x/sys/unix"
)

// WriteV writes the data of the views at the byte offset off. The caller must have checked that the
// range is within the disk. After an error some clusters may have the new data, as on any disk.
func (o *Overlay) WriteV(views [][]byte, off uint64) error {
	o.rest = append(o.rest[:0], views...)
	for left := length(views); left > 0; {
		n, whole := o.writeRun(off, left)
		part := o.take(n)
		var err error
		if whole {
			err = o.writeWhole(part, off, n)
		} else {
			err = o.writePartial(part, off, n)
		}
		if err != nil {
			return err
		}
		off, left = off+n, left-n
	}
	return nil
}

// writeRun returns how many bytes, beginning at off, can be written in the same way, up to the
// given limit (left). If whole is true, these bytes are written directly to the top: they are whole
// clusters, or the top already has their clusters. If whole is false, these bytes are in one
// cluster, which must be completed with data from the files below.
func (o *Overlay) writeRun(off, left uint64) (n uint64, whole bool) {
	end := off + left
	if !o.fills(off/cluster, off, end) {
		return min(left, cluster-off%cluster), false
	}
	last := (end - 1) / cluster
	if !o.fills(last, off, end) {
		return last*cluster - off, true
	}
	return left, true
}

// fills reports whether the part of a write to [off, end) that lies in cluster c can be written
// directly to the top.
func (o *Overlay) fills(c, off, end uint64) bool {
	begins := c * cluster
	return off <= begins && end >= min(begins+cluster, o.size) || o.top.Has(c)
}

func (o *Overlay) writeWhole(part [][]byte, off, n uint64) error {
	f := o.top.File()
	err := transfer(part, off, func(views [][]byte, off int64) (int, error) {
		if len(views) == 1 {
			return unix.Pwrite(fd(f), views[0], off)
		}
		return unix.Pwritev(fd(f), views, off)
	})
	if err != nil {
		return err
	}
	return o.mark(off, n)
}

// mark sets the bits of the clusters that [off, off+n) touches, unless they are already set.
func (o *Overlay) mark(off, n uint64) error {
	first, end := off/cluster, (off+n+cluster-1)/cluster
	if has, run := o.top.Run(first, end-first); has && run == end-first {
		return nil
	}
	return o.top.Set(first, end-first)
}

// writePartial writes n bytes inside a cluster that the top does not have. It copies the other
// bytes of the cluster from the files below.
func (o *Overlay) writePartial(part [][]byte, off, n uint64) error {
	if o.scratch == nil {
		o.scratch = make([]byte, cluster)
	}
	begins := off - off%cluster
	whole := o.scratch[:min(cluster, o.size-begins)]
	for at := uint64(0); at < uint64(len(whole)); {
		f, k := o.locate(begins+at, uint64(len(whole))-at)
		one := [1][]byte{whole[at : at+k]}
		if err := o.readPart(f, one[:], begins+at); err != nil {
			return err
		}
		at += k
	}
	at := off - begins
	for _, v := range part {
		at += uint64(copy(whole[at:], v))
	}
	one := [1][]byte{whole}
	return o.writeWhole(one[:], begins, uint64(len(whole)))
}

// Zero makes n bytes at off read as zero and frees their space in the top. The caller must have
// checked that the range is within the disk.
func (o *Overlay) Zero(off, n uint64) error {
	end := off + n
	first, last := (off+cluster-1)/cluster*cluster, end/cluster*cluster
	if end == o.size {
		last = end
	}
	if first >= last {
		return o.writeZeros(off, n)
	}
	if err := o.writeZeros(off, first-off); err != nil {
		return err
	}
	f := o.top.File()
	err := retry(func() error {
		return unix.Fallocate(fd(f), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(first), int64(last-first))
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = o.writeZeros(first, last-first)
	} else if err == nil {
		err = o.mark(first, last-first)
	}
	if err != nil {
		return err
	}
	return o.writeZeros(last, end-last)
}

// Discard frees the space of the clusters that lie completely within the n bytes at off. These
// clusters then read as zero.
func (o *Overlay) Discard(off, n uint64) error {
	first, last := (off+cluster-1)/cluster*cluster, (off+n)/cluster*cluster
	if first >= last {
		return nil
	}
	return o.Zero(first, last-first)
}

// writeZeros writes n zero bytes at off.
func (o *Overlay) writeZeros(off, n uint64) error {
	if n == 0 {
		return nil
	}
	zeros := make([]byte, min(n, 64*1024))
	for n > 0 {
		k := min(n, uint64(len(zeros)))
		if err := o.WriteV([][]byte{zeros[:k]}, off); err != nil {
			return err
		}
		off, n = off+k, n-k
	}
	return nil
}
