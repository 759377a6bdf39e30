// Package filedigest computes the digests of large files that consist mostly of holes. It reads only
// their data. Package snapshot defines the digest, and the caller chooses the priority of the work.
package filedigest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/snapshot"
)

// digestBuffer is the size of one read in bytes. It is a multiple of snapshot.DigestChunk.
const digestBuffer = 1 << 20

// Of returns the digest of a file's content (see snapshot.Digester). It skips holes, and moves the file's offset.
func Of(ctx context.Context, f *os.File) (string, error) {
	st, err := f.Stat()
	if err != nil {
		return "", err
	}
	d := snapshot.NewDigester(uint64(st.Size()))
	buf := make([]byte, digestBuffer)
	for at := int64(0); at < st.Size(); {
		start, err := f.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // the file has no more data
			break
		}
		if err != nil {
			return "", err
		}
		end, err := f.Seek(start, unix.SEEK_HOLE)
		if err != nil {
			return "", err
		}
		// Begin at the start of a chunk, because a file system's blocks may be smaller than chunks.
		start = max(at, start-start%snapshot.DigestChunk)
		end = min(st.Size(), roundUp(end))
		if err := digestData(ctx, d, f, start, end, buf); err != nil {
			return "", fmt.Errorf("digest %s: %w", f.Name(), err)
		}
		at = end
	}
	return d.Sum(), nil
}

func digestData(ctx context.Context, d *snapshot.Digester, f *os.File, at, end int64, buf []byte) error {
	for at < end {
		if err := ctx.Err(); err != nil {
			return err
		}
		p := buf[:min(int64(len(buf)), end-at)]
		if n, err := f.ReadAt(p, at); err == io.EOF && n < len(p) {
			return errors.New("the file became shorter")
		} else if err != nil && err != io.EOF {
			return err
		}
		if err := d.Write(uint64(at), p); err != nil {
			return err
		}
		at += int64(len(p))
	}
	return nil
}

func roundUp(n int64) int64 { return (n + snapshot.DigestChunk - 1) &^ (snapshot.DigestChunk - 1) }
