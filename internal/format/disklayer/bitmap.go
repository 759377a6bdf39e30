package disklayer

import "fmt"

const clustersPerPage = pageSize * 8

// Has reports whether the cluster is in the layer. Clusters after the end of the disk are not in
// the layer.
func (l *Layer) Has(cluster uint64) bool {
	return cluster < l.clusters && l.present[cluster/clustersPerPage] && l.bits[cluster/8]&(1<<(cluster%8)) != 0
}

// Run reports whether the cluster is in the layer, and for how many consecutive clusters the answer
// is the same. This number is at most limit, which must be positive.
func (l *Layer) Run(cluster, limit uint64) (has bool, n uint64) {
	has = l.Has(cluster)
	var same byte
	if has {
		same = 0xff
	}
	for n = 1; n < limit; {
		c := cluster + n
		switch {
		case c >= l.clusters:
			if has {
				return has, n
			}
			return has, limit
		case c%clustersPerPage == 0 && !has && !l.present[c/clustersPerPage]:
			n += clustersPerPage
		case c%8 == 0 && l.present[c/clustersPerPage] && l.bits[c/8] == same:
			n += 8
		case l.Has(c) != has:
			return has, n
		default:
			n++
		}
	}
	return has, limit
}

// Set marks n consecutive clusters as being in the layer. The parameter first is the number of the
// first cluster. The caller must already have written the data of all n clusters. After an error,
// Set may have marked some or all of the clusters. The layer is consistent even then, because the
// data was written first.
func (l *Layer) Set(first, n uint64) error {
	if first+n < first || first+n > l.clusters {
		return fmt.Errorf("mark clusters %d+%d: the disk has %d", first, n, l.clusters)
	}
	var chunk [64]byte
	for end := first + n; first < end; {
		// Each iteration writes bits of one chunk and one page of the bitmap.
		base := first / 8
		count := min(end, (base+uint64(len(chunk)))*8, (first/clustersPerPage+1)*clustersPerPage) - first
		length := (first%8 + count + 7) / 8
		page := base / pageSize
		b := chunk[:length]
		clear(b)
		if l.present[page] {
			copy(b, l.bits[base:])
		}
		for c := first; c < first+count; c++ {
			b[c/8-base] |= 1 << (c % 8)
		}
		// Write to the file and not to the mapping. On a full file system the write returns an
		// error, but a store to the mapping would raise SIGBUS.
		if _, err := l.file.WriteAt(b, int64(l.offset+base)); err != nil {
			return fmt.Errorf("mark clusters %d+%d: %w", first, count, err)
		}
		l.present[page] = true
		first += count
	}
	return nil
}
