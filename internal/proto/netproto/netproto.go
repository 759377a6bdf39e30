// Package netproto is the control protocol between the daemon and forkd-net, the process through
// which all sandboxes of a host connect to the network. The daemon sends requests on a
// SOCK_SEQPACKET unix socket. With some requests it sends descriptors. forkd-net answers each
// request. The daemon may send further requests before it has received the answer to an earlier
// request. forkd-net handles requests in order.
//
// The package defines the messages and their encoding, and the form of a policy (Policy, Rule). It
// opens no socket. Package policy of forkd-net decides what a policy permits.
package netproto

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/forkd/forkd/internal/proto/codec"
)

// Version must be changed whenever a message changes. forkd-net answers a daemon of another version
// with the error code CodeVersion.
const Version = 5

// ListenerFD is the number of the descriptor of forkd-net's listening control socket.
const ListenerFD = 3

// Kind is the first byte of every message.
type Kind = codec.Kind

// Requests and replies. Each comment names the body, the descriptors that are sent along, and the
// body of the answer.
const (
	KindHello  Kind = iota + 1 // Hello; the first request. Answer: Welcome
	KindConfig                 // Config; the flow log, if there is one. Replaces the previous Config
	// Attach; the frame socket. If a sandbox with this id is attached, it is detached first.
	KindAttach
	KindDetach    // ID. Resets the sandbox's connections; an unknown id is not an error
	KindSetPolicy // SetPolicy. Resets connections that the new policy denies
	KindStats     // ID; "" for the sum over all sandboxes. Answer: Stats
	KindList      // no body. Answer: List
	// Trust; a file with the root certificates for servers, in PEM. Required before a Secret.
	KindTrust
	KindEffects // ID. Answer: Effects
	KindOK      // answer; the body depends on the request
	KindError   // answer; Error
)

// Hello contains the daemon's version of the protocol.
type Hello struct{ Version uint32 }

// Welcome is the answer to Hello.
type Welcome struct {
	Version uint32
	PID     uint32
}

// Config is the configuration that forkd-net cannot read itself, because it has no access to files.
type Config struct {
	Resolvers []netip.AddrPort // DNS servers, used in this order
	Own       []netip.Addr     // addresses of the host
	Proxy     Proxy
}

// Proxy is a proxy for outgoing TCP connections, with the method CONNECT. If Addr is the zero
// value, there is no proxy.
type Proxy struct {
	Addr          netip.AddrPort
	Authorization Hidden // value of Proxy-Authorization; empty: none
	Except        string // names, addresses and networks that are connected without the proxy, as in NO_PROXY
}

// Limits limit one sandbox's use of the network. A zero field takes the default of forkd-net.
type Limits struct {
	BytesPerSecond   uint64 // bytes of payload, in each direction
	PacketsPerSecond uint32
	Connections      uint32 // concurrent connections
}

// MaxConnections is the maximum number of connections of one sandbox, even if its limits permit
// more. In addition, forkd-net's memory limits the connections of all sandboxes together, and one
// sandbox may have at most three quarters of these connections.
const MaxConnections = 4096

// Check returns a *FieldError if a limit is invalid.
func (l *Limits) Check() error {
	if l.Connections > MaxConnections {
		return &FieldError{"limits.connections", fmt.Sprintf("%d: want at most %d", l.Connections, MaxConnections)}
	}
	return nil
}

// Attach adds a sandbox. Frames that its guest has sent earlier are waiting in the socket.
type Attach struct {
	ID      string // at most MaxID bytes
	Policy  Policy
	Limits  Limits
	Secrets []Secret
	Hold    Hold
}

// MaxID bounds the id of a sandbox, in bytes.
const MaxID = 64

// SetPolicy replaces the policy, the limits, the secrets and the hold of a sandbox.
type SetPolicy Attach

// ID is the body of requests about one sandbox.
type ID struct{ ID string }

// List has the ids of all attached sandboxes, in any order.
type List struct{ IDs []string }

// Refusals has the number of destinations that were refused for one reason.
type Refusals struct {
	Reason string // one of forkd-net's constants, so a guest cannot add reasons
	Count  uint64
}

// Refusal is a destination that was refused.
type Refusal struct {
	Protocol string // tcp, udp, icmp or dns
	Address  string // address, with the port if there is one; empty for dns
	Name     string // name of the server, or the name in the DNS query; chosen by the guest; empty if unknown
	Reason   string // one of the reasons in Refusals
	Why      string // the reason in words, for people
	Fix      string // flags that would permit the connection; empty if no flag would
	Count    uint64
	Unix     int64 // Unix time of the latest refusal, in seconds
}

// Passage is a destination that the policy permits.
type Passage struct {
	Protocol  string // tcp, udp or icmp
	Address   string // address, with the port if there is one
	Name      string // name of the server; chosen by the guest; empty if unknown
	UpBytes   uint64 // payload of ended connections to the destination, sent by the guest
	DownBytes uint64
	Count     uint64 // ended connections
	Unix      int64  // Unix time at which the latest connection ended, in seconds
}

// Flow is an open connection that the policy permits.
type Flow struct {
	Protocol  string // tcp, udp or icmp
	Address   string // address, with the port if there is one
	Name      string // name of the server; chosen by the guest; empty if unknown
	UpBytes   uint64 // payload that the guest has sent so far
	DownBytes uint64
	Began     int64 // Unix time in seconds
	Last      int64 // Unix time of the latest data, in seconds
}

// MaxFlows bounds the length of Stats.Flows.
const MaxFlows = 32

// MaxRecent bounds the lengths of Stats.Recent and Stats.Passed.
const MaxRecent = 8

// Stats are counters since the sandbox was attached. In a sum over all sandboxes, they are counters
// since forkd-net started.
type Stats struct {
	Active      bool   // the guest has sent a frame, so the sandbox has a network stack
	Open        uint32 // open connections, including UDP flows
	Connections uint64 // permitted connections that have ended
	UpBytes     uint64 // payload of ended connections, sent by the guest
	DownBytes   uint64 // payload of ended connections, sent to the guest
	DNSQueries  uint64
	Dropped     uint64     // frames that were malformed, or that the guest did not take
	Refused     []Refusals // one entry for each reason that has occurred
	Recent      []Refusal  // latest refused destinations, up to MaxRecent, the newest first; empty in a sum
	Passed      []Passage  // latest destinations of permitted connections that have ended; otherwise like Recent
	Flows       []Flow     // open connections, up to MaxFlows, most recently active first; empty in a sum
}

// Code is the kind of an error, for callers that must distinguish errors.
type Code uint8

// Codes of Error.
const (
	CodeInternal Code = iota + 1
	CodeVersion       // the daemon has another version of the protocol
	CodeUnknown       // no sandbox with this id is attached
	CodeInvalid       // the request is malformed
	CodeHeld          // the VM neither reads nor closes earlier frame sockets of forkd-net
)

// Error is the body of KindError. It implements the interface error.
type Error struct {
	Code Code
	Text string
}

func (m *Error) Error() string { return m.Text }

// IsCode reports whether err is an error with this code from forkd-net.
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
	m.Hold.append(w)
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
	if m.Secrets, err = parseSecrets(r); err != nil {
		return err
	}
	return m.Hold.parse(r)
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
	w.U32(uint32(len(m.Passed)))
	for _, f := range m.Passed {
		for _, text := range []string{f.Protocol, f.Address, f.Name} {
			w.String(text)
		}
		for _, n := range []uint64{f.UpBytes, f.DownBytes, f.Count, uint64(f.Unix)} {
			w.U64(n)
		}
	}
	w.U32(uint32(len(m.Flows)))
	for _, f := range m.Flows {
		for _, text := range []string{f.Protocol, f.Address, f.Name} {
			w.String(text)
		}
		for _, n := range []uint64{f.UpBytes, f.DownBytes, uint64(f.Began), uint64(f.Last)} {
			w.U64(n)
		}
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
	for range r.Count(44) {
		m.Passed = append(m.Passed, Passage{Protocol: r.String(), Address: r.String(), Name: r.String(), UpBytes: r.U64(),
			DownBytes: r.U64(), Count: r.U64(), Unix: int64(r.U64())})
	}
	for range r.Count(44) {
		m.Flows = append(m.Flows, Flow{Protocol: r.String(), Address: r.String(), Name: r.String(), UpBytes: r.U64(),
			DownBytes: r.U64(), Began: int64(r.U64()), Last: int64(r.U64())})
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

// appendAddr encodes the number of bytes of an address (4 or 16), and the bytes.
func appendAddr(w *codec.Writer, a netip.Addr) { w.Blob(a.AsSlice()) }

// parseAddr decodes an address. For invalid bytes, it returns the zero address.
func parseAddr(r *codec.Reader) netip.Addr {
	a, _ := netip.AddrFromSlice(r.Blob())
	return a
}
