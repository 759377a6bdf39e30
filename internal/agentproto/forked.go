package agentproto

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/forkd/forkd/internal/wire"
)

// Sizes of fork messages in bytes.
const (
	LengthSize = 4       // of the length that every message begins with, little-endian; it does not count itself
	MaxForked  = 1 << 20 // what may follow it to the guest
	MaxAnswer  = 64 << 10
)

// Forked tells a guest that it is a new copy of an older one. The agent applies all of it before it answers.
type Forked struct {
	Entropy       []byte // 32 bytes or more, unique to this guest
	RealtimeNanos int64  // host CLOCK_REALTIME when sent, ns since 1970
	Hostname      string
	Env           map[string]string // added to the environment of later processes and evals
}

// Append appends the message to b: its length, then RealtimeNanos, Entropy, Hostname, the number of variables, and the
// name and value of each, as package wire encodes them.
func (f *Forked) Append(b []byte) ([]byte, error) {
	var w wire.Writer
	w.U64(uint64(f.RealtimeNanos))
	w.Blob(f.Entropy)
	w.String(f.Hostname)
	w.U32(uint32(len(f.Env)))
	for name, value := range f.Env {
		w.String(name)
		w.String(value)
	}
	if len(w.Bytes()) > MaxForked {
		return nil, fmt.Errorf("fork message of %d bytes, at most %d: give the sandbox less environment",
			len(w.Bytes()), MaxForked)
	}
	return appendMessage(b, w.Bytes()), nil
}

// Received is a Forked in the guest. Its byte slices alias the message, so that without variables it costs no memory.
type Received struct {
	Entropy       []byte
	RealtimeNanos int64
	Hostname      []byte
	Env           map[string]string // nil without variables
}

// ParseForked takes what Append wrote behind the length.
func ParseForked(body []byte) (f Received, err error) {
	r := wire.NewReader(body)
	f.RealtimeNanos = int64(r.U64())
	f.Entropy, f.Hostname = r.Blob(), r.Blob()
	if n := r.Count(2 * LengthSize); n > 0 { // two lengths each
		f.Env = make(map[string]string, n)
		for range n {
			name := r.String()
			f.Env[name] = r.String()
		}
	}
	if err := r.Done(); err != nil {
		return Received{}, fmt.Errorf("fork message: %w", err)
	}
	return f, nil
}

// Length returns the length at the beginning of a message, which must not exceed max.
func Length(head []byte, max int) (int, error) {
	if len(head) < LengthSize {
		return 0, errors.New("fork message: no length")
	}
	n := binary.LittleEndian.Uint32(head)
	if uint64(n) > uint64(max) {
		return 0, fmt.Errorf("fork message of %d bytes, at most %d", n, max)
	}
	return int(n), nil
}

// AppendAnswer appends the agent's answer to b: the text of err, or nothing if the guest took up its identity.
func AppendAnswer(b []byte, err error) []byte {
	if err == nil {
		return appendMessage(b, nil)
	}
	text := err.Error()
	if text == "" {
		text = "unknown error"
	}
	return appendMessage(b, []byte(text[:min(len(text), MaxAnswer)]))
}

func appendMessage(b, body []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(body))), body...)
}
