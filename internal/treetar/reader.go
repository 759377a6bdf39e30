package treetar

import (
	"archive/tar"
	"fmt"
	"io"
	"math"
	"strings"
)

// maxHeaders bounds the headers before one entry, in bytes. An entry may have any number of
// extended headers, and a tar.Reader accepts 1 MiB for each.
const maxHeaders = 4 << 20

// ErrHeaders means that an archive has more than maxHeaders bytes of headers before an entry.
var ErrHeaders = fmt.Errorf("the archive has more than %d MiB of headers before an entry", maxHeaders>>20)

// Reader is a tar.Reader for archives that are not trusted. Next fails with ErrHeaders instead of
// reading endless headers. If the caller has not read the content of a sparse entry, Next counts
// the content as headers, because the length of the content is unknown.
type Reader struct {
	*tar.Reader
	in     *bounded
	sparse bool // whether the present entry is sparse
}

// NewReader returns a Reader of the archive r.
func NewReader(r io.Reader) *Reader {
	in := &bounded{r: r}
	return &Reader{Reader: tar.NewReader(in), in: in}
}

// Next advances to the next entry, like the method of tar.Reader.
func (r *Reader) Next() (*tar.Header, error) {
	r.in.left = math.MaxInt64
	if !r.sparse { // for a sparse entry the size is unknown: a few bytes may claim any number of zeros
		if _, err := io.Copy(io.Discard, r.Reader); err != nil {
			return nil, err
		}
	}
	r.in.left = maxHeaders
	h, err := r.Reader.Next()
	r.in.left = math.MaxInt64
	r.sparse = err == nil && isSparse(h)
	return h, err
}

func isSparse(h *tar.Header) bool {
	for k := range h.PAXRecords {
		if strings.HasPrefix(k, "GNU.sparse.") {
			return true
		}
	}
	return h.Typeflag == tar.TypeGNUSparse
}

// bounded is a reader with a limit. When the number of bytes that may still be read (left) is 0, it
// fails with ErrHeaders.
type bounded struct {
	r    io.Reader
	left int64
}

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, ErrHeaders
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}
