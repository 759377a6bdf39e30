// Package netproto is the control protocol between the daemon and forkd-net, the process through
// which all sandboxes of a host reach the network: a SOCK_SEQPACKET unix socket on which the daemon
// sends requests, with the descriptors they donate, and forkd-net answers each with one reply. The
// daemon may send further requests before the first is answered; they are carried out and answered
// in their order.
//
// The package has the messages and their encoding, and what a policy is (Policy, Rule). It does not
// decide what a policy lets through, which is package policy of forkd-net, and it opens no socket.
package netproto

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/forkd/forkd/internal/proto/codec"
)

// Version changes whenever a message does. forkd-net refuses a daemon that speaks another one, with
// CodeVersion.
const Version = 3

// ListenerFD is the descriptor number at which forkd-net finds its listening control socket.
const ListenerFD = 3

// Kind is the first byte of every message.
type Kind = codec.Kind

// Requests and replies. The comment names the body and the donated descriptors, and what the answer
// carries.
const (
	KindHello     Kind = iota + 1 // Hello; the first request. Answer: Welcome
	KindConfig                    // Config; the flow log, if there is one. It replaces all of an earlier Config
	KindAttach                    // Attach; the frame socket. A sandbox of the same id is detached first
	KindDetach                    // ID. Its connections are reset; an unknown id is no error
	KindSetPolicy                 // SetPolicy. Connections that the new policy does not let through are reset
	KindStats                     // ID; "" for the sum over all sandboxes there ever were. Answer: Stats
	KindList                      // no body. Answer: List
	KindTrust                     // Trust; a file of PEM certificates, the roots of servers. It comes before any Secret
	KindOK                        // reply; body as the request says
	KindError                     // reply; Error
)

// Hello says which protocol the daemon speaks.
type Hello struct{ Version uint32 }

// Welcome is the answer to Hello.
type Welcome struct {
	Version uint32
	PID     uint32
}

// Config is what forkd-net cannot find out by itself, for it reads no file.
type Config struct {
	Resolvers []netip.AddrPort // asked in this order
	Own       []netip.Addr     // the host's own addresses
	Proxy     Proxy
}

// Proxy is what TCP goes out through, by CONNECT. Without an address there is none.
type Proxy struct {
	Addr          netip.AddrPort
	Authorization Hidden // of Proxy-Authorization; empty: none
	Except        string // names, addresses and networks that are connected to directly, as in NO_PROXY
}

// Limits bound what one sandbox takes from the others. Zero values mean forkd-net's defaults.
type Limits struct {
	BytesPerSecond   uint64 // of payload, in each direction
	PacketsPerSecond uint32
	Connections      uint32 // at a time
}

// MaxConnections bounds the connections of one sandbox, whatever its limits say. All sandboxes
// together have no more than forkd-net has memory for, and one has three quarters of those.
const MaxConnections = 4096

// Check reports what is wrong with limits. Errors are *FieldError.
func (l *Limits) Check() error {
	if l.Connections > MaxConnections {
		return &FieldError{"limits.connections", fmt.Sprintf("%d: want at most %d", l.Connections, MaxConnections)}
	}
	return nil
}

// Attach makes a sandbox known. Frames that its guest sent before wait in the socket.
type Attach struct {
	ID      string // at most MaxID bytes
	Policy  Policy
	Limits  Limits
	Secrets []Secret
}

// MaxID bounds the id of a sandbox in bytes.
const MaxID = 64

// SetPolicy replaces policy, limits and secrets of a sandbox.
type SetPolicy Attach

// ID names a sandbox.
type ID struct{ ID string }

// List has the ids of all attached sandboxes, in no order.
type List struct{ IDs []string }

// Refusals counts what was refused for one reason.
type Refusals struct {
	Reason string // one of package policy's: they are few, and no guest can add to them
	Count  uint64
}

// Refusal is a destination that was refused.
type Refusal struct {
	Protocol string // tcp, udp, icmp or dns
	Address  string // with its port, if it has one; empty for dns
	Name     string // of the server, or that DNS was asked for; empty if unknown. The guest chose it
	Reason   string // as in Refusals
	Why      string // the reason in words
	Fix      string // by which flags it would be let through; empty if by none
	Count    uint64
	Unix     int64 // the last time
}

// MaxRecent bounds the latest destinations of Stats.
const MaxRecent = 8

// Stats are counters since Attach, or for the sum since forkd-net started.
type Stats struct {
	Active      bool   // there is a network stack: the guest has sent a frame
	Open        uint32 // connections now, UDP flows included
	Connections uint64 // that were let through and have ended
	UpBytes     uint64 // payload of these from the guest
	DownBytes   uint64 // payload of these to the guest
	DNSQueries  uint64
	Dropped     uint64     // frames that the guest had no room for, or that were malformed
	Refused     []Refusals // reasons with a count of zero are left out
	Recent      []Refusal  // what was refused last, at most MaxRecent, the latest first; none in a sum
}

// Code says what went wrong, for those who branch on it.
type Code uint8

// Codes of Error.
const (
	CodeInternal Code = iota + 1
	CodeVersion       // the daemon speaks another version
	CodeUnknown       // no sandbox of that id is attached
	CodeInvalid       // the request is malformed
)

// Error is the body of KindError. It is an error by itself.
type Error struct {
	Code Code
	Text string
}

func (m *Error) Error() string { return m.Text }

// IsCode reports whether err is an answer of forkd-net with that code.
func IsCode(err error, code Code) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Code == code
}

// Append encodes m.
func (m *Hello) Append(w *codec.Writer) { w.U32(m.Version) }

// Parse decodes m.
func (m *Hello) Parse(r *codec.Reader) error {
	m.Version = r.U32()
	return r.Err()
}

// Append encodes m.
func (m *Welcome) Append(w *codec.Writer) {
	w.U32(m.Version)
	w.U32(m.PID)
}

// Parse decodes m.
func (m *Welcome) Parse(r *codec.Reader) error {
	*m = Welcome{Version: r.U32(), PID: r.U32()}
	return r.Err()
}

// Append encodes m.
func (m *Config) Append(w *codec.Writer) {
	w.U32(uint32(len(m.Resolvers)))
	for _, a := range m.Resolvers {
		appendAddr(w, a.Addr())
		w.U16(a.Port())
	}
	w.U32(uint32(len(m.Own)))
	for _, a := range m.Own {
		appendAddr(w, a)
	}
	appendAddr(w, m.Proxy.Addr.Addr())
	w.U16(m.Proxy.Addr.Port())
	w.String(string(m.Proxy.Authorization))
	w.String(m.Proxy.Except)
}

// Parse decodes m.
func (m *Config) Parse(r *codec.Reader) error {
	*m = Config{}
	for range r.Count(6) {
		m.Resolvers = append(m.Resolvers, netip.AddrPortFrom(parseAddr(r), r.U16()))
	}
	for range r.Count(4) {
		m.Own = append(m.Own, parseAddr(r))
	}
	m.Proxy = Proxy{Addr: netip.AddrPortFrom(parseAddr(r), r.U16()), Authorization: Hidden(r.String()), Except: r.String()}
	return r.Err()
}

// Append encodes m.
func (m *Attach) Append(w *codec.Writer) {
	w.String(m.ID)
	m.Policy.append(w)
	w.U64(m.Limits.BytesPerSecond)
	w.U32(m.Limits.PacketsPerSecond)
	w.U32(m.Limits.Connections)
	appendSecrets(w, m.Secrets)
}

// Parse decodes m.
func (m *Attach) Parse(r *codec.Reader) error {
	*m = Attach{}
	if err := parseID(r, &m.ID); err != nil {
		return err
	}
	if err := m.Policy.parse(r); err != nil {
		return err
	}
	m.Limits = Limits{BytesPerSecond: r.U64(), PacketsPerSecond: r.U32(), Connections: r.U32()}
	var err error
	m.Secrets, err = parseSecrets(r)
	return err
}

// Append encodes m.
func (m *SetPolicy) Append(w *codec.Writer) { (*Attach)(m).Append(w) }

// Parse decodes m.
func (m *SetPolicy) Parse(r *codec.Reader) error { return (*Attach)(m).Parse(r) }

// Append encodes m.
func (m *ID) Append(w *codec.Writer) { w.String(m.ID) }

// Parse decodes m.
func (m *ID) Parse(r *codec.Reader) error {
	m.ID = r.String()
	return r.Err()
}

// Append encodes m.
func (m *List) Append(w *codec.Writer) {
	w.U32(uint32(len(m.IDs)))
	for _, id := range m.IDs {
		w.String(id)
	}
}

// Parse decodes m.
func (m *List) Parse(r *codec.Reader) error {
	*m = List{}
	for range r.Count(4) {
		m.IDs = append(m.IDs, r.String())
	}
	return r.Err()
}

// Append encodes m.
func (m *Stats) Append(w *codec.Writer) {
	w.Bool(m.Active)
	w.U32(m.Open)
	for _, n := range []uint64{m.Connections, m.UpBytes, m.DownBytes, m.DNSQueries, m.Dropped} {
		w.U64(n)
	}
	w.U32(uint32(len(m.Refused)))
	for _, f := range m.Refused {
		w.String(f.Reason)
		w.U64(f.Count)
	}
	w.U32(uint32(len(m.Recent)))
	for _, f := range m.Recent {
		for _, text := range []string{f.Protocol, f.Address, f.Name, f.Reason, f.Why, f.Fix} {
			w.String(text)
		}
		w.U64(f.Count)
		w.U64(uint64(f.Unix))
	}
}

// Parse decodes m.
func (m *Stats) Parse(r *codec.Reader) error {
	*m = Stats{Active: r.Bool(), Open: r.U32(), Connections: r.U64(), UpBytes: r.U64(), DownBytes: r.U64(),
		DNSQueries: r.U64(), Dropped: r.U64()}
	for range r.Count(12) {
		m.Refused = append(m.Refused, Refusals{Reason: r.String(), Count: r.U64()})
	}
	for range r.Count(40) {
		m.Recent = append(m.Recent, Refusal{Protocol: r.String(), Address: r.String(), Name: r.String(), Reason: r.String(),
			Why: r.String(), Fix: r.String(), Count: r.U64(), Unix: int64(r.U64())})
	}
	return r.Err()
}

// Append encodes m.
func (m *Error) Append(w *codec.Writer) {
	w.U8(uint8(m.Code))
	w.String(m.Text)
}

// Parse decodes m.
func (m *Error) Parse(r *codec.Reader) error {
	*m = Error{Code: Code(r.U8()), Text: r.String()}
	return r.Err()
}

func parseID(r *codec.Reader, id *string) error {
	*id = r.String()
	if r.Err() == nil && (*id == "" || len(*id) > MaxID) {
		return fmt.Errorf("the id of a sandbox has %d bytes: it has 1 to %d", len(*id), MaxID)
	}
	return r.Err()
}

// An address travels as its 4 or 16 bytes with their number before them.
func appendAddr(w *codec.Writer, a netip.Addr) { w.Blob(a.AsSlice()) }

// parseAddr returns no address for bytes that are none.
func parseAddr(r *codec.Reader) netip.Addr {
	a, _ := netip.AddrFromSlice(r.Blob())
	return a
}
