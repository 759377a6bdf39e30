package hub

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"

	"github.com/opencontainers/go-digest"

	"github.com/forkd/forkd/internal/format/artifact"
)

const (
	// smallBlob is the maximum size, in bytes, of a blob that is fetched with one request. Larger
	// blobs need a request for their index first, so that every frame can be verified when it
	// arrives.
	smallBlob = 1 << 20

	// maxFetchedIndex is the maximum size, in bytes, of an index that is decoded while its blob
	// arrives. A blob with a larger index is fetched as if the registry did not support ranges.
	maxFetchedIndex = 8 << 20
)

// fetching is a blob on its way from a registry into a file. The manifest limits how many bytes are
// read and written.
//
// If the connection breaks, the next request begins behind the last verified frame. If the registry
// does not support ranges, it sends the whole blob again.
type fetching struct {
	*conn
	b    artifact.Blob
	f    *os.File
	sent func(n int64) // called with the bytes that arrive
	room func() error  // checks the room on the disk; called again after every roomEvery bytes

	frames []artifact.Frame // nil: the index is unknown
	done   int              // verified frames in the file
	at     int64            // end of these frames
	sum    hash.Hash        // of the bytes before at
	since  int64            // bytes since the last call of room
}

// run fetches the blob and compares it with its digest.
func (x *fetching) run(ctx context.Context) error {
	ctx = context.WithValue(ctx, blobKey{}, true)
	x.sum = sha256.New()
	if x.b.Size > x.small && x.b.IndexBytes <= maxFetchedIndex {
		if err := x.again(ctx, func() error { return x.index(ctx) }); err != nil {
			return err
		}
	}
	for n := 1; ; n++ {
		before := x.done
		err := x.content(ctx)
		if err == nil {
			break
		}
		if x.done > before {
			n = 1 // a verified frame restarts the count of tries
		}
		if n >= x.tries || !isTemporary(err) {
			return err
		}
		if err := x.pause(ctx, n); err != nil {
			return err
		}
	}
	if got := digest.NewDigestFromBytes(digest.SHA256, x.sum.Sum(nil)); got != x.b.Digest {
		return x.bad("its digest is %s", got)
	}
	return nil
}

func (x *fetching) bad(format string, args ...any) error {
	return &artifact.Error{Err: fmt.Errorf("registry %s: blob %s of %s: "+format,
		append([]any{x.Registry(), x.b.Digest, x.b.Part.Name}, args...)...)}
}

// index fetches the end of the blob, and writes it to its place in the file.
func (x *fetching) index(ctx context.Context) error {
	start := x.b.Size - x.b.IndexBytes
	resp, err := x.get(ctx, x.endpoint("blobs", x.b.Digest.String()), "", start, x.b.Size)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusPartialContent {
		return nil // the registry does not support ranges
	}
	p := make([]byte, x.b.IndexBytes)
	if err := x.read(resp.Body, p); err != nil {
		return err
	}
	if x.frames, err = artifact.Frames(p, x.b); err != nil {
		return err
	}
	_, err = x.f.WriteAt(p, start)
	return err
}

// read fills p from the body of an answer.
func (x *fetching) read(body io.Reader, p []byte) error {
	n, err := io.ReadFull(body, p)
	if full := x.count(int64(n)); full != nil {
		return full
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// count counts bytes that have arrived. It returns an error if the disk is full.
func (x *fetching) count(n int64) error {
	x.sent(n)
	if x.since += n; x.since < x.roomEvery {
		return nil
	}
	x.since = 0
	return x.room()
}

// content fetches the rest of the blob.
func (x *fetching) content(ctx context.Context) error {
	if x.frames == nil {
		return x.whole(ctx)
	}
	end := x.b.Size - x.b.IndexBytes
	if x.done < len(x.frames) {
		resp, err := x.get(ctx, x.endpoint("blobs", x.b.Digest.String()), "", x.at, end)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusPartialContent {
			return x.bad("the registry has sent a range of it, and then no longer does")
		}
		if err := x.checkLength(resp, end-x.at); err != nil {
			return err
		}
		if err := x.receiveFrames(resp.Body); err != nil {
			return err
		}
	}
	_, err := io.Copy(x.sum, io.NewSectionReader(x.f, end, x.b.IndexBytes))
	return err
}

// checkLength returns an error if the registry announces a number of bytes other than want.
func (x *fetching) checkLength(resp *http.Response, want int64) error {
	if n := resp.ContentLength; n >= 0 && n != want {
		return x.bad("the registry has %d bytes in the place of %d", n, want)
	}
	return nil
}

// receiveFrames writes the frames in body to the file, each after its verification.
func (x *fetching) receiveFrames(body io.Reader) error {
	var p []byte
	for ; x.done < len(x.frames); x.done++ {
		f := &x.frames[x.done]
		if cap(p) < int(f.Size) {
			p = make([]byte, f.Size) // bounded by artifact.Frames
		}
		p = p[:f.Size]
		if err := x.read(body, p); err != nil {
			return err
		}
		if sha256.Sum256(p) != f.Sum {
			return x.bad("frame %d differs from its digest", x.done)
		}
		if _, err := x.f.WriteAt(p, x.at); err != nil {
			return err
		}
		x.sum.Write(p)
		x.at += int64(f.Size)
	}
	return nil
}

// whole fetches all of the blob with one request.
func (x *fetching) whole(ctx context.Context) error {
	resp, err := x.get(ctx, x.endpoint("blobs", x.b.Digest.String()), "", 0, 0)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := x.checkLength(resp, x.b.Size); err != nil {
		return err
	}
	x.sum.Reset()
	if _, err := x.f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	w := io.MultiWriter(x.f, x.sum, counter(x.count))
	n, err := io.CopyN(w, resp.Body, x.b.Size)
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%d bytes of %d: %w", n, x.b.Size, io.ErrUnexpectedEOF)
	}
	return err
}

// counter is a writer that counts.
type counter func(n int64) error

func (c counter) Write(p []byte) (int, error) {
	if err := c(int64(len(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}
