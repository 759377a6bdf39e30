package disklayer

import (
	"fmt"
	"io"
	"os"
)

// mergeRun is how many clusters are looked at at a time.
const mergeRun = 1024

// Merge makes the empty file dst a layer with the content of layers, base first, which lie over one another.
func Merge(dst *os.File, layers []*os.File) error {
	if len(layers) == 0 {
		return fmt.Errorf("merge disk layers into %s: no layers", dst.Name())
	}
	var open []*Layer
	defer func() {
		for _, l := range open {
			_ = l.Close()
		}
	}()
	for i, f := range layers {
		l, err := Open(f)
		if err != nil {
			return err
		}
		open = append(open, l)
		if l.size != open[0].size {
			return fmt.Errorf("merge disk layers: layer %d is of a disk of %d bytes, layer 0 of %d", i, l.size, open[0].size)
		}
	}
	if err := Format(dst, open[0].size); err != nil {
		return err
	}
	merged, err := Open(dst)
	if err != nil {
		return err
	}
	open = append(open, merged)
	for _, l := range open[:len(layers)] {
		if err := merged.add(l); err != nil {
			return fmt.Errorf("merge disk layers: %w", err)
		}
	}
	return nil
}

// add copies all clusters of upper.
func (l *Layer) add(upper *Layer) error {
	for at := uint64(0); at < upper.clusters; {
		has, n := upper.Run(at, min(mergeRun, upper.clusters-at))
		n = min(n, upper.clusters-at)
		if has {
			offset, length := int64(at*ClusterSize), int64(n*ClusterSize)
			if _, err := io.Copy(io.NewOffsetWriter(l.file, offset), io.NewSectionReader(upper.file, offset, length)); err != nil {
				return err
			}
			if err := l.Set(at, n); err != nil {
				return err
			}
		}
		at += n
	}
	return nil
}
