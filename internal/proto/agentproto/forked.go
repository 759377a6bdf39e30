package agentproto

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/forkd/forkd/internal/proto/codec"
)

// Sizes of fork messages in bytes.
const (
	// Size of the length at the beginning of every message. The length does not include these
	// bytes, and is little-endian.
	LengthSize = 4
	MaxForked  = 1 << 20 // maximum length of a message to the guest, without LengthSize
	MaxAnswer  = 64 << 10
)

// kind is the first byte of a message after its length.
type kind uint8

const (
	kindForked  kind = 1
	kindPrepare kind = 2
)

// Forked tells a guest that it is a new copy of another guest. The agent answers when it has
// applied all fields.
type Forked struct {
	Entropy       []byte // 32 bytes or more, different for each guest
	RealtimeNanos int64  // the host's CLOCK_REALTIME at the time of sending, in ns since 1970
	Hostname      string
	Env           map[string]string // added to the environment of processes and evals that are started later
}

// Append appends the message to b. The message consists of its length, its kind, RealtimeNanos,
// Entropy, Hostname, the number of variables, and the name and value of each variable. Fields are
// encoded as in package codec.
func (f *Forked) Append(b []byte) ([]byte, error) {
	var w codec.Writer
	w.U8(uint8(kindForked))
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

// QuietTime is the time between a guest's answer to AppendPrepare and the save of the guest. The
// host must send no requests in this time. The guest uses the time for deferred work, such as
// freeing memory, stopping timers of its disk and putting threads to sleep. Without the quiet time,
// each forked sandbox would have to do that work.
const QuietTime = 3 * time.Second

// AppendPrepare appends the message that makes a guest ready to be saved and forked; see QuietTime.
func AppendPrepare(b []byte) []byte { return appendMessage(b, []byte{uint8(kindPrepare)}) }

// Received is a message as the guest receives it. Its byte slices are parts of the message, so
// Parse allocates no memory for a message without variables.
type Received struct {
	Prepare bool // the message was made by AppendPrepare; all other fields are empty

	Entropy       []byte
	RealtimeNanos int64
	Hostname      []byte
	Env           map[string]string // nil if there are no variables
}

// Parse parses the part of a message after its length. The message was made by Append or
// AppendPrepare.
func Parse(body []byte) (m Received, err error) {
	r := codec.NewReader(body)
	switch k := kind(r.U8()); k {
	case kindForked:
		m.RealtimeNanos = int64(r.U64())
		m.Entropy, m.Hostname = r.Blob(), r.Blob()
		m.Env = parseEnv(r)
	case kindPrepare:
		m.Prepare = true
	default:
		return m, fmt.Errorf("fork message of unknown kind %d", k)
	}
	if err := r.Done(); err != nil {
		return Received{}, fmt.Errorf("fork message: %w", err)
	}
	return m, nil
}

func parseEnv(r *codec.Reader) map[string]string {
	n := r.Count(2 * LengthSize) // each variable has at least its two lengths
	if n == 0 {
		return nil
	}
	env := make(map[string]string, n)
	for range n {
		name := r.String()
		env[name] = r.String()
	}
	return env
}

// Length returns the length at the beginning of a message. If the length exceeds the given maximum,
// Length returns an error.
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

// AppendAnswer appends the agent's answer to b: the text of err, or an empty text if err is nil.
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
