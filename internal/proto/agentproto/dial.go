package agentproto

import (
	"encoding/binary"
	"time"
)

// A stream to DialPort begins with the number of a TCP port on the guest's loopback: two bytes,
// little-endian. The agent answers with one byte, a DialAnswer. After DialOK the stream carries the
// bytes of the connection, and the end of each direction. After any other answer, the agent closes
// the stream.

// DialSize is the length of the request, in bytes.
const DialSize = 2

// DialTimeout bounds the attempt to connect to each of the two loopback addresses. A connect takes
// long only if the server's queue of connections is full.
const DialTimeout = 5 * time.Second

// MaxDialed is the maximum number of connections to ports that an agent carries at the same time.
// The guest's vsock device has 256 streams in total.
const MaxDialed = 112

// DialAnswer is the answer to a request to DialPort.
type DialAnswer byte

// The answers. Any other value is an error of a newer agent.
const (
	DialOK      DialAnswer = iota + 1
	DialRefused            // no server listens at the port
	DialTimeOut            // a server listens, but does not accept the connection
	DialBusy               // MaxDialed connections are open
	DialFailed             // any other error, such as a lack of memory
)

// AppendDial appends a request for a port.
func AppendDial(b []byte, port uint16) []byte { return binary.LittleEndian.AppendUint16(b, port) }

// ParseDial returns the port of a request.
func ParseDial(b [DialSize]byte) uint16 { return binary.LittleEndian.Uint16(b[:]) }
