package hub

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"

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

// fetching is a blob on its way from a registry to a writer, which may be a file or another
// registry. The manifest limits how many bytes are read and written. The writer receives the end of
// the blob only if the whole blob has the right digest.
//
// If the connection breaks, the next request begins after the last verified frame. If the registry
// does not support ranges, it sends the whole blob again, and the bytes that the writer already has
// are skipped.
type fetching struct {
	*conn
	b    artifact.Blob
	out  io.Writer
	sent func(n int64) // called with the number of bytes that have arrived
	room func() error  // checks the room on the disk after every roomEvery bytes; nil: nothing checks it

	frames []artifact.Frame // nil: the index is unknown
	done   int              // number of verified frames that were written
	at     int64            // number of bytes that were written
	sum    hash.Hash        // SHA-256 of the bytes that were written
	tail   []byte           // end of the blob, which is written after the check of the digest
	since  int64            // number of bytes since the last call of room
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
		if x.done > before || x.awaits(err) {
			n = 1 // a verified frame, or a source that still packs, restarts the count of tries
		}
		if n >= x.tries || !isTemporary(err) {
			return err
		}
		if err := x.pause(ctx, n); err != nil {
			return err
		}
	}
	x.sum.Write(x.tail)
	if got := digest.NewDigestFromBytes(digest.SHA256, x.sum.Sum(nil)); got != x.b.Digest {
		return x.bad("its digest is %s", got)
	}
	_, err := x.out.Write(x.tail)
	return err
}

// write writes the next bytes of the blob.
func (x *fetching) write(p []byte) error {
	n, err := x.out.Write(p)
	x.sum.Write(p[:n])
	x.at += int64(n)
	return err
}

func (x *fetching) bad(format string, args ...any) error {
	return &artifact.Error{Err: fmt.Errorf("registry %s: blob %s of %s: "+format,
		append([]any{x.Registry(), x.b.Digest, x.b.Part.Name}, args...)...)}
}

// index fetches the blob's index, which is at the end of the blob.
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
	x.frames, err = artifact.Frames(p, x.b)
	x.tail = p
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
	if x.since += n; x.since < x.roomEvery || x.room == nil {
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
	if x.done == len(x.frames) {
		return nil
	}
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
	return x.receiveFrames(resp.Body)
}

// checkLength returns an error if the registry announces a number of bytes other than want.
func (x *fetching) checkLength(resp *http.Response, want int64) error {
	if n := resp.ContentLength; n >= 0 && n != want {
		return x.bad("the registry has %d bytes in the place of %d", n, want)
	}
	return nil
}

// receiveFrames writes the frames in body, each after its verification.
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
		if err := x.write(p); err != nil {
			return err
		}
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
	if err := x.copy(io.Discard, resp.Body, x.at); err != nil { // earlier tries have written these bytes
		return err
	}
	if err := x.copy(writerFunc(x.write), resp.Body, x.b.Size-1-x.at); err != nil {
		return err
	}
	x.tail = make([]byte, 1)
	return x.read(resp.Body, x.tail)
}

// copy copies n bytes of the body of an answer.
func (x *fetching) copy(w io.Writer, body io.Reader, n int64) error {
	count := writerFunc(func(p []byte) error { return x.count(int64(len(p))) })
	_, err := io.CopyN(io.MultiWriter(count, w), body, n)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// writerFunc is an io.Writer that calls a function.
type writerFunc func(p []byte) error

func (f writerFunc) Write(p []byte) (int, error) {
	if err := f(p); err != nil {
		return 0, err
	}
	return len(p), nil
}
