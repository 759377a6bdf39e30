package disklayer

import "fmt"

const clustersPerPage = pageSize * 8

// Has reports whether the cluster is in the layer. Clusters beyond the disk are not.
func (l *Layer) Has(cluster uint64) bool {
	return cluster < l.clusters && l.present[cluster/clustersPerPage] && l.bits[cluster/8]&(1<<(cluster%8)) != 0
}

// Run reports whether the cluster is in the layer, and the number of clusters from there, at most
// limit, with the same answer. limit is positive.
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

// Set marks n clusters from the first as being in the layer. Their data must have been written
// before. After an error none, some or all of them are marked; each marked one is consistent,
// because its data is there.
func (l *Layer) Set(first, n uint64) error {
	if first+n < first || first+n > l.clusters {
		return fmt.Errorf("mark clusters %d+%d: the disk has %d", first, n, l.clusters)
	}
	var chunk [64]byte
	for end := first + n; first < end; {
		// One write stays within a chunk and a bitmap page.
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
		// Through the file, not the mapping: on a full file system this is an error, not a SIGBUS.
		if _, err := l.file.WriteAt(b, int64(l.offset+base)); err != nil {
			return fmt.Errorf("mark clusters %d+%d: %w", first, count, err)
		}
		l.present[page] = true
		first += count
	}
	return nil
}
