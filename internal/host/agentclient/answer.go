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

// bound limits the answer of an RPC: its length in bytes as sent, its number of JSON objects, and
// its number of JSON values of any kind.
type bound struct{ bytes, objects, values int }

// maxLast is the maximum size of the last message of a stream, in bytes. The message may contain an
// error, whose text has at most maxText bytes.
const maxLast = maxText

// maxListed is the maximum number of entries that the agent lists.
const maxListed = 20000

// Bounds on the answers of RPCs. Client.Keep is not called for RPCs with the bound named small,
// because their answers take no more memory than their requests.
var (
	small     = bound{64 << 10, 16, 256} // for answers with one entry, one event, or nothing
	processes = bound{1 << 20, maxListed, 128 << 10}
	listing   = bound{8 << 20, maxListed + 1, 20 * maxListed}
)

// objectSize and valueSize are estimates, in bytes, of the memory that each object and each value
// of an answer takes when decoded. Client.Keep is asked for this memory. The estimates are high,
// because even an object of three bytes becomes a protobuf message, a value of this package, a
// value of the API, and JSON.
const (
	objectSize = 256
	valueSize  = 16
)

// errTooMuch is returned for an answer that is larger than any answer of the real agent.
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

// follow makes an RPC whose answer is a stream of messages.
func follow[Req, Res any](ctx context.Context, c *Client, procedure string,
	req *connect.Request[Req]) (*connect.ServerStreamForClient[Res], error) {
	rpc := connect.NewClient[Req, Res](streams{c.envd}, envdURL+procedure, options(small, nil)...)
	return rpc.CallServerStream(ctx, req)
}

func options(most bound, ask func(int) error) []connect.ClientOption {
	// Messages must not be compressed. The bound applies to the bytes as sent, and a compressed
	// message can be much longer after it is decompressed.
	return []connect.ClientOption{connect.WithCodec(boundedJSON{most, ask}), connect.WithReadMaxBytes(most.bytes),
		connect.WithAcceptCompression("gzip", nil, nil)}
}

// answers is the HTTP client for unary RPCs. It counts an answer's bytes as they arrive, and bounds
// the text of an error.
type answers struct {
	client *http.Client
	ask    func(int) error // see Client.Keep
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

// streams is the HTTP client for RPCs whose answer is a stream. It bounds the last message of a
// stream, because Connect decodes that message itself. When decoded, a part of an error can take a
// hundred times its length.
type streams struct{ client *http.Client }

func (s streams) Do(req *http.Request) (*http.Response, error) {
	resp, err := s.client.Do(req)
	if err == nil {
		resp.Body = &streamBody{ReadCloser: resp.Body}
	}
	return resp, err
}

// streamBody is a stream of messages. Five bytes precede each message: one byte with flags, and
// four bytes with the message's length.
type streamBody struct {
	io.ReadCloser
	head [5]byte
	have int    // number of bytes in head
	left uint32 // number of bytes of the present message that are still to be read
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

// boundedJSON is Connect's JSON codec with a bound on the number of objects and values. It counts
// them before it decodes a message.
type boundedJSON struct {
	most bound
	ask  func(int) error // see Client.Keep
}

// Name returns the name of Connect's own JSON codec, which this codec replaces.
func (boundedJSON) Name() string { return "json" }

// Marshal encodes a message.
func (boundedJSON) Marshal(message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is no message", message)
	}
	return protojson.Marshal(m)
}

// Unmarshal decodes a message. Like Connect's codec, it skips unknown fields.
func (c boundedJSON) Unmarshal(data []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is no message", message)
	}
	objects, values := count(data) // before Unmarshal, because decoding can turn three bytes into hundreds
	if objects > c.most.objects || values > c.most.values {
		return fmt.Errorf("%w: more than %d entries or %d values", errTooMuch, c.most.objects, c.most.values)
	}
	if err := keep(c.ask, objects*objectSize+values*valueSize); err != nil {
		return err
	}
	return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(data, m)
}

// count returns the number of objects and of values in JSON. For invalid JSON the numbers may be
// too high. Counting allocates nothing.
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
