package agentclient

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// bound is what the answer of an RPC may have: bytes as they are sent, JSON objects, and values of
// any kind.
type bound struct{ bytes, objects, values int }

// maxLast bounds the last message of a stream, in bytes: an error, in words that are cut to maxText.
const maxLast = maxText

// maxListed is how many entries the guest's own agent lists at most.
const maxListed = 20000

// Bounds on answers. Only the larger two count against Client.Keep: a small one costs no more than its
// request.
var (
	small     = bound{64 << 10, 16, 256} // one entry, one event, or nothing
	processes = bound{1 << 20, maxListed, 128 << 10}
	listing   = bound{8 << 20, maxListed + 1, 20 * maxListed}
)

// What decoding adds to the bytes of an answer, in bytes that count against Client.Keep. An object of
// three bytes becomes a message, a value of this package, one of the API, and JSON.
const (
	objectSize = 256
	valueSize  = 16
)

// errTooMuch is the error for answers that no agent of ours gives.
var errTooMuch = errors.New("the guest's answer is too large")

// call makes a unary RPC.
func call[Req, Res any](ctx context.Context, c *Client, procedure string, most bound,
	req *connect.Request[Req]) (*Res, error) {
	var ask func(int) error
	if most != small {
		ask = c.Keep
	}
	rpc := connect.NewClient[Req, Res](answers{c.envd, ask}, envdURL+procedure, options(most, ask)...)
	resp, err := rpc.CallUnary(ctx, req)
	if err != nil {
		return nil, err
	}
	return resp.Msg, nil
}

// follow makes an RPC that is answered by a stream of messages.
func follow[Req, Res any](ctx context.Context, c *Client, procedure string,
	req *connect.Request[Req]) (*connect.ServerStreamForClient[Res], error) {
	rpc := connect.NewClient[Req, Res](streams{c.envd}, envdURL+procedure, options(small, nil)...)
	return rpc.CallServerStream(ctx, req)
}

func options(most bound, ask func(int) error) []connect.ClientOption {
	// A message is bounded only as it is sent, not as it is unpacked: so none is compressed.
	return []connect.ClientOption{connect.WithCodec(boundedJSON{most, ask}), connect.WithReadMaxBytes(most.bytes),
		connect.WithAcceptCompression("gzip", nil, nil)}
}

// answers is the HTTP client of unary RPCs. It counts their answers as they come, and bounds the
// text of errors.
type answers struct {
	client *http.Client
	ask    func(int) error // as Client.Keep
}

func (a answers) Do(req *http.Request) (*http.Response, error) {
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, err
	}
	body := io.Reader(countedBody{resp.Body, a.ask})
	if resp.StatusCode != http.StatusOK {
		body = io.LimitReader(body, maxText)
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{body, resp.Body}
	return resp, nil
}

// streams is the HTTP client of RPCs that are answered by a stream. It bounds the last message, which
// Connect decodes by itself: a part of an error takes a hundred times its bytes.
type streams struct{ client *http.Client }

func (s streams) Do(req *http.Request) (*http.Response, error) {
	resp, err := s.client.Do(req)
	if err == nil {
		resp.Body = &streamBody{ReadCloser: resp.Body}
	}
	return resp, err
}

// streamBody is a stream of messages, each behind a byte of flags and its length in four.
type streamBody struct {
	io.ReadCloser
	head [5]byte
	have int    // bytes of head
	left uint32 // bytes of the message that head announces
}

const flagLast = 2

func (s *streamBody) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	for p := p[:n]; len(p) > 0; {
		skip := min(uint64(s.left), uint64(len(p)))
		s.left, p = s.left-uint32(skip), p[skip:]
		if s.left > 0 || len(p) == 0 {
			continue
		}
		copied := copy(s.head[s.have:], p)
		s.have, p = s.have+copied, p[copied:]
		if s.have < len(s.head) {
			continue
		}
		s.have, s.left = 0, binary.BigEndian.Uint32(s.head[1:])
		if s.head[0]&flagLast != 0 && s.left > maxLast {
			return 0, errTooMuch
		}
	}
	return n, err
}

type countedBody struct {
	from io.Reader
	ask  func(int) error
}

func (c countedBody) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	if short := keep(c.ask, n); short != nil {
		return 0, short
	}
	return n, err
}

// boundedJSON is the JSON of Connect. It counts what is in a message before it decodes it.
type boundedJSON struct {
	most bound
	ask  func(int) error // as Client.Keep
}

// Name is that of Connect's own codec, which this one replaces.
func (boundedJSON) Name() string { return "json" }

// Marshal encodes a message.
func (boundedJSON) Marshal(message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is no message", message)
	}
	return protojson.Marshal(m)
}

// Unmarshal decodes a message. Like Connect's codec, it skips fields that it does not know.
func (c boundedJSON) Unmarshal(data []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is no message", message)
	}
	objects, values := count(data) // before Unmarshal: what that makes of three bytes takes hundreds
	if objects > c.most.objects || values > c.most.values {
		return fmt.Errorf("%w: more than %d entries or %d values", errTooMuch, c.most.objects, c.most.values)
	}
	if err := keep(c.ask, objects*objectSize+values*valueSize); err != nil {
		return err
	}
	return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(data, m)
}

// count returns how many objects and how many values are in JSON, at most: in what is no JSON it
// may count too many. It allocates nothing.
func count(data []byte) (objects, values int) {
	quoted := false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			i++
		case quoted:
		case c == '{':
			objects++
			values++
		case c == '[', c == ',':
			values++
		}
	}
	return objects, values
}
