package agentproto

import (
	"encoding/binary"
	"time"
)

// A stream to DialPort begins with a TCP port of the guest's loopback: two bytes, little-endian.
// The agent answers with one byte, a DialAnswer. After DialOK the stream carries the connection,
// byte for byte, including the end of each direction. After any other answer the agent closes the
// stream.

// DialSize is the length of the request, in bytes. The answer is one byte.
const DialSize = 2

// DialTimeout is how long the agent tries each of the two loopback addresses. Only a server with a
// full queue of connections takes long.
const DialTimeout = 5 * time.Second

// MaxDialed bounds the connections to ports that an agent carries at once. The guest's vsock device
// has 256 streams in total.
const MaxDialed = 112

// DialAnswer is the result of a request to DialPort.
type DialAnswer byte

// The answers. Treat any other value as an error of a newer agent.
const (
	DialOK      DialAnswer = iota + 1
	DialRefused            // no server listens there
	DialTimeOut            // a server listens, but does not accept
	DialBusy               // MaxDialed connections are already open
	DialFailed             // anything else, such as a lack of memory
)

// AppendDial appends a request for a port.
func AppendDial(b []byte, port uint16) []byte { return binary.LittleEndian.AppendUint16(b, port) }

// ParseDial returns the port of a request.
func ParseDial(b [DialSize]byte) uint16 { return binary.LittleEndian.Uint16(b[:]) }
