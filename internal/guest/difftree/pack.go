package difftree

import (
	"archive/tar"
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// block is the unit of a tar archive.
const block = 512

// packer writes a tar archive.
type packer struct {
	raw   io.Writer // the archive, for blocks that tar.Writer cannot write
	tar   *tar.Writer
	links map[uint64]string // first name of each inode with several names
}

// pack writes the archive of the entries in list.
func (x *exporter) pack(out io.Writer) error {
	buffered := bufio.NewWriterSize(out, 256<<10)
	p := &packer{raw: buffered, tar: tar.NewWriter(buffered), links: make(map[uint64]string)}
	for _, entry := range x.list {
		if entry.deleted {
			dir, name := path.Split(strings.TrimPrefix(entry.path, "/"))
			if err := p.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: dir + whiteout + name, Mode: 0o600,
				Format: tar.FormatPAX}); err != nil {
				return err
			}
			continue
		}
		f, err := x.open(entry.path)
		if err != nil {
			return &os.PathError{Op: "open", Path: entry.path, Err: err}
		}
		err = p.add(f)
		f.close()
		if err != nil {
			return fmt.Errorf("pack %q: %w", entry.path, err)
		}
	}
	return errors.Join(p.tar.Close(), buffered.Flush())
}

// add adds a file.
func (p *packer) add(f *source) error {
	h := f.header
	if h.Typeflag != tar.TypeReg {
		return p.tar.WriteHeader(h)
	}
	if f.linked {
		if first, ok := p.links[f.inode]; ok {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
			return p.tar.WriteHeader(h)
		}
		p.links[f.inode] = h.Name
	}
	content, err := openFile(f.dir, f.name)
	if err != nil {
		return err
	}
	defer content.Close()
	data, err := dataOf(content, h.Size, maxExtents)
	if err != nil {
		return err
	}
	if h.Size > 0 && !slices.Equal(data, []extent{{0, h.Size}}) {
		return p.sparse(h, content, data)
	}
	if err := p.tar.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(p.tar, io.NewSectionReader(content, 0, h.Size))
	return err // tar.Writer reports a file that has become shorter
}

// extent is a part of a file that has data.
type extent struct{ start, end int64 }

// maxExtents bounds the number of a file's extents in an archive. Go's tar.Reader accepts lists of up to
// 1 MiB, which is about 26,000 extents of a very large file.
const maxExtents = 16 << 10

// leastHole is the size of the smallest hole that an archive keeps.
const leastHole = 64 << 10

// dataOf returns at most the given number of extents of a file, in ascending order. If the file has
// more, the smallest holes become data.
func dataOf(f *os.File, size int64, most int) (list []extent, err error) {
	hole := int64(leastHole)
	for at := int64(0); at < size; {
		start, err := f.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			return nil, err
		}
		end, err := f.Seek(start, unix.SEEK_HOLE)
		if err != nil {
			return nil, err
		}
		if end <= at || start < at {
			return nil, unix.EIO // a damaged file system
		}
		list = joined(append(list, extent{start, min(end, size)}), hole, len(list)-1)
		for ; len(list) > most; hole *= 2 {
			list = joined(list, 2*hole, 0)
		}
		at = end
	}
	return list, nil
}

// joined joins neighbouring extents if the hole between them is shorter than the given length. It
// begins with the extent list[first].
func joined(list []extent, hole int64, first int) []extent {
	n := max(0, first)
	for _, e := range list[n+1:] {
		if e.start-list[n].end < hole {
			list[n].end = e.end
			continue
		}
		n++
		list[n] = e
	}
	return list[:n+1]
}

// sparse adds a file with holes, in version 1.0 of GNU's format, which tar.Writer cannot write.
func (p *packer) sparse(h *tar.Header, content *os.File, data []extent) error {
	size := h.Size
	if n := len(data); n == 0 || data[n-1].end < size {
		data = append(data, extent{size, size}) // if a file ends with a hole, GNU tar needs this to find the file's end
	}
	var list bytes.Buffer
	fmt.Fprintln(&list, len(data))
	stored := int64(0)
	for _, e := range data {
		fmt.Fprintf(&list, "%d\n%d\n", e.start, e.end-e.start)
		stored += e.end - e.start
	}
	list.Write(padding(int64(list.Len())))
	stored += int64(list.Len())

	records := maps.Clone(h.PAXRecords)
	maps.Copy(records, map[string]string{"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": h.Name,
		"GNU.sparse.realsize": strconv.FormatInt(size, 10), "uid": strconv.Itoa(h.Uid), "gid": strconv.Itoa(h.Gid),
		"mtime": strconv.FormatInt(h.ModTime.Unix(), 10)})
	if stored > maxPlain { // without this record, Python's tarfile would look for the next entry at a wrong place
		records["size"] = strconv.FormatInt(stored, 10)
	}
	var text bytes.Buffer
	for _, key := range slices.Sorted(maps.Keys(records)) {
		text.WriteString(record(key, records[key]))
	}
	extended, err := plainHeader(tar.TypeXHeader, 0o600, int64(text.Len()))
	if err != nil {
		return err
	}
	main, err := plainHeader(tar.TypeReg, h.Mode, stored)
	if err != nil {
		return err
	}
	text.Write(padding(int64(text.Len())))
	if err := p.tar.Flush(); err != nil {
		return err
	}
	for _, part := range [][]byte{extended, text.Bytes(), main, list.Bytes()} {
		if _, err := p.raw.Write(part); err != nil {
			return err
		}
	}
	for _, e := range data {
		if n, err := io.Copy(p.raw, io.NewSectionReader(content, e.start, e.end-e.start)); err != nil {
			return err
		} else if n != e.end-e.start {
			return io.ErrUnexpectedEOF
		}
	}
	_, err = p.raw.Write(padding(stored))
	return err
}

// maxPlain is the largest size in a header block, in bytes. If an entry is larger, the extended
// header has its size.
const maxPlain = 1<<33 - 1

// plainHeader returns a header block of an entry whose other fields are in an extended header.
func plainHeader(kind byte, mode, size int64) ([]byte, error) {
	var out bytes.Buffer
	h := &tar.Header{Typeflag: tar.TypeReg, Name: "sparse", Mode: mode, Size: min(size, maxPlain),
		Format: tar.FormatUSTAR}
	if err := tar.NewWriter(&out).WriteHeader(h); err != nil {
		return nil, err
	}
	// Offsets of the type and of the checksum in a block. tar.Writer does not write the type of an
	// extended header, so it is set here. The checksum is the sum of all other bytes, so it changes
	// too.
	const typeAt, sumAt = 156, 148
	b := out.Bytes()
	sum, err := strconv.ParseInt(strings.Trim(string(b[sumAt:sumAt+8]), " \x00"), 8, 64)
	if err != nil {
		return nil, err
	}
	copy(b[sumAt:], fmt.Sprintf("%06o\x00 ", sum+int64(kind)-int64(b[typeAt])))
	b[typeAt] = kind
	return b, nil
}

// record returns a record of an extended header. The record begins with its own length.
func record(key, value string) string {
	rest := len(" =\n") + len(key) + len(value)
	n := rest + len(strconv.Itoa(rest))
	if len(strconv.Itoa(n)) > len(strconv.Itoa(rest)) {
		n++ // the length has one more digit
	}
	return fmt.Sprintf("%d %s=%s\n", n, key, value)
}

// padding returns the zeros that follow n bytes in an archive.
func padding(n int64) []byte { return make([]byte, -n&(block-1)) }
