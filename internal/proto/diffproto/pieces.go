package diffproto

import (
	"fmt"
	"io"

	"github.com/forkd/forkd/internal/proto/codec"
)

// PieceWriter sends a tar archive in pieces. Each call of Write sends at least one piece, so
// callers should write large blocks.
type PieceWriter struct{ w io.Writer }

// NewPieceWriter returns a PieceWriter. Its caller must call Close.
func NewPieceWriter(w io.Writer) *PieceWriter { return &PieceWriter{w: w} }

// Write implements io.Writer.
func (p *PieceWriter) Write(data []byte) (n int, err error) {
	for len(data) > 0 {
		piece := data[:min(len(data), maxPiece)]
		if err := p.send(piece); err != nil {
			return n, err
		}
		n, data = n+len(piece), data[len(piece):]
	}
	return n, nil
}

// Close sends the end of the archive.
func (p *PieceWriter) Close() error { return p.send(nil) }

func (p *PieceWriter) send(data []byte) error {
	var body codec.Writer
	body.U8(uint8(kindPiece))
	body.Blob(data)
	return writeFrame(p.w, body.Bytes())
}

// NextPiece returns the next piece of the tar archive that follows Done, or io.EOF at the end of
// the archive. The piece is valid until the next call. If forkd-diff has refused the request, the
// error is a *RefusedError.
func (r *Reader) NextPiece() ([]byte, error) {
	var err error
	if r.buf, err = readFrame(r.r, r.buf, maxPiece+16); err != nil {
		return nil, fmt.Errorf("read an archive from forkd-diff: %w", err)
	}
	in := codec.NewReader(r.buf)
	switch kind := codec.Kind(in.U8()); kind {
	case kindPiece:
		piece := in.Blob()
		if err := in.Done(); err != nil {
			return nil, fmt.Errorf("read an archive from forkd-diff: %w", err)
		}
		if len(piece) == 0 {
			return nil, io.EOF
		}
		return piece, nil
	case kindRefused:
		return nil, parseRefused(in)
	default:
		return nil, fmt.Errorf("read an archive from forkd-diff: a message of kind %d", kind)
	}
}
