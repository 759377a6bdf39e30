package stack

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/forkd/forkd/internal/net/flowlog"
	"github.com/forkd/forkd/internal/net/peek"
	"github.com/forkd/forkd/internal/net/policy"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// Reasons for refusing flows that the policy permits.
const (
	tooMany     = "connection-limit" // the sandbox has too many connections
	tooManyHost = "host-limit"       // this process has too many sockets
)

// limitReasons explains the reasons above to users.
var limitReasons = map[string]struct{ why, fix string }{
	tooMany:      {"too many connections at a time", "raise --net-connections"},
	tooManyHost:  {"too many connections of all sandboxes", "raise the daemon's limit of open files, or have a host with more memory"},
	openRate:     {"too many new connections a second", ""},
	heldHost:     {"effects at a host of this address are held, and only its HTTP at ports 80 and 443 can be", ""},
	heldRequests: {"all requests of the connection were held", "list them with 'forkd effects'"},
}

// flow is one connection, or the UDP packets between one pair of ports.
type flow struct {
	policy.Flow // the stack's mu guards Own, Peeked, Server, Unclear and ECH

	stack   *Stack
	ctx     context.Context // cancelled to reset the flow
	cancel  context.CancelFunc
	started time.Time
	last    atomic.Int64 // time of the latest data, in nanoseconds since 1970
	half    atomic.Bool  // whether one side has ended and the other has not
	held    atomic.Bool  // whether a request was held and no request has reached the server
	up      atomic.Uint64
	down    atomic.Uint64
	place   int // number of flows that the stack had, including this one, when this one was added

	sizes buffers // zero until chosen; see the method buffers
	room  *room   // the room that counts the bytes of sizes; nil if no room counts them

	// The stack's mu guards the fields below.
	decided bool   // whether the policy has decided about this flow, and must decide again when the policy changes
	verdict string // verdict for the log
	reason  string
	err     error
}

// enter counts a task that is started by a goroutine other than the stack's own, so that Close
// waits for the task. If the stack is closed, enter returns false.
func (s *Stack) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.tasks.Add(1)
	}
	return !s.closed
}

// begin registers a flow. The caller must later call s.end for the flow. If there are too many
// flows, begin returns the reason instead of a flow.
func (s *Stack) begin(protocol policy.Protocol, to netip.AddrPort) (*flow, string) {
	f := &flow{stack: s, started: time.Now(), Flow: policy.Flow{Protocol: protocol, To: to}}
	f.Names = s.dns.Names(to.Addr())
	f.touch()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.flows) >= int(s.limits.Connections) {
		return nil, tooMany
	}
	if !s.host.takeSocket(protocol) {
		return nil, tooManyHost
	}
	f.ctx, f.cancel = context.WithCancel(s.ctx)
	s.flows[f] = struct{}{}
	f.place = len(s.flows)
	s.counters.Open.Store(int32(f.place))
	return f, ""
}

// decide asks the policy about a flow. If the flow's first bytes have been read, seen describes
// them. If they have not been read yet, seen is nil.
func (s *Stack) decide(f *flow, seen *peek.Seen) policy.Verdict {
	own := s.host.isOwn(f.To.Addr()) // asked each time, because the host's addresses change
	s.mu.Lock()
	defer s.mu.Unlock()
	f.Own = own
	if seen != nil {
		f.Peeked, f.Server, f.Unclear, f.ECH = true, seen.Name, seen.Unclear, seen.ECH
	}
	verdict, reason := s.verdictLocked(f)
	f.verdict, f.reason = verdict.String(), string(reason)
	f.decided = verdict != policy.Peek
	return verdict
}

// refuse records why a flow is refused although the policy permits it.
func (s *Stack) refuse(f *flow, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.verdict, f.reason = policy.Refuse.String(), reason
}

// end removes a flow from the list, and logs the flow.
func (s *Stack) end(f *flow) {
	f.cancel()
	if f.room != nil {
		f.room.give(f.sizes.bytes())
	}
	s.host.giveSocket(f.Protocol)
	s.mu.Lock()
	delete(s.flows, f)
	s.counters.Open.Store(int32(len(s.flows)))
	verdict, reason, err, name := f.verdict, f.reason, f.err, f.nameLocked()
	why, fix := policy.Explain(&s.policy, &f.Flow, policy.Reason(reason))
	s.mu.Unlock()
	s.counters.Up.Add(f.up.Load())
	s.counters.Down.Add(f.down.Load())
	r := record{protocol: f.Protocol.String(), address: f.To, name: name, started: f.started, up: f.up.Load(),
		down: f.down.Load(), why: why, fix: fix}
	if verdict != policy.Pass.String() {
		s.refused(r, reason)
		return
	}
	s.counters.pass(netproto.Passage{Protocol: r.protocol, Address: r.addressText(), Name: r.name, UpBytes: r.up,
		DownBytes: r.down, Unix: time.Now().Unix()})
	if !s.passes.Allow() {
		s.host.Log.Lost()
		return
	}
	s.log(r, verdict, reason, err)
}

// nameLocked returns the name that the connection gave for its server, or else the name that the guest
// looked up. If there is neither, the result is "".
func (f *flow) nameLocked() string {
	if f.Server == "" && len(f.Names) > 0 {
		return f.Names[len(f.Names)-1]
	}
	return f.Server
}

// Flows returns the open connections that the policy permits, except those whose requests were all
// held. If there are more than netproto.MaxFlows, it returns the connections that have carried data
// most recently. The list is sorted by the time at which a connection last carried data, the most
// recent first.
func (s *Stack) Flows() (list []netproto.Flow) {
	type timed struct {
		f    *flow
		last int64
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []timed
	for f := range s.flows {
		if f.verdict == policy.Pass.String() && !f.held.Load() {
			all = append(all, timed{f, f.last.Load()})
		}
	}
	slices.SortFunc(all, func(a, b timed) int { return cmp.Compare(b.last, a.last) })
	for _, t := range all[:min(len(all), netproto.MaxFlows)] {
		r := record{protocol: t.f.Protocol.String(), address: t.f.To}
		list = append(list, netproto.Flow{Protocol: r.protocol, Address: r.addressText(), Name: t.f.nameLocked(),
			UpBytes: t.f.up.Load(), DownBytes: t.f.down.Load(), Began: t.f.started.Unix(),
			Last: t.last / int64(time.Second)})
	}
	return list
}

// fail records why a permitted flow failed to start or ended early.
func (f *flow) fail(err error) {
	f.stack.mu.Lock()
	defer f.stack.mu.Unlock()
	f.err = cmp.Or(f.err, err)
}

// killLocked resets a flow and records why.
func (f *flow) killLocked(why error) {
	f.err = cmp.Or(f.err, why)
	f.cancel()
}

// Reasons why flows are reset.
var (
	errIdle   = errors.New("idle for too long")
	errRoom   = errors.New("made room for another")
	errClosed = errors.New("the sandbox's network was closed")

	errSecrets = errors.New("the sandbox was given other secrets")
	errHold    = errors.New("the sandbox was given another hold")
)

// given reports whether our DNS has returned the flow's address for the given name.
func (f *flow) given(name string) bool { return slices.Contains(f.Names, name) }

func (f *flow) touch() { f.last.Store(time.Now().UnixNano()) }

func (f *flow) idleLimit() time.Duration {
	switch {
	case f.Protocol == policy.UDP:
		return idleUDP
	case f.half.Load():
		return idleHalf
	}
	return idleTCP
}

// record is a flow's entry in the log.
type record struct {
	protocol, name string
	address        netip.AddrPort
	started        time.Time
	up, down       uint64
	why, fix       string // explain a refusal by the policy; see policy.Explain
}

// addressText returns the address and port. If the address is unknown, it returns "". For ICMP it
// omits the port.
func (r *record) addressText() string {
	switch {
	case !r.address.IsValid():
		return ""
	case r.address.Port() == 0:
		return r.address.Addr().String()
	}
	return r.address.String()
}

// refused is called after a refusal. It counts and logs the refusal.
func (s *Stack) refused(r record, reason string) {
	if limit, ok := limitReasons[reason]; ok {
		r.why, r.fix = limit.why, limit.fix
	}
	s.counters.note(netproto.Refusal{Protocol: r.protocol, Address: r.addressText(), Name: r.name, Reason: reason,
		Why: r.why,
		Fix: r.fix, Unix: time.Now().Unix()})
	s.counters.refuse(reason)
	if !s.logged.Allow() {
		s.host.Log.Lost()
		return
	}
	s.log(r, policy.Refuse.String(), reason, nil)
}

func (s *Stack) log(r record, verdict, reason string, err error) {
	now := time.Now()
	line := flowlog.Record{Time: now, Sandbox: s.id, Verdict: verdict, Reason: reason, Name: r.name, Protocol: r.protocol,
		UpBytes: r.up, DownBytes: r.down, Address: r.addressText()}
	if !r.started.IsZero() {
		line.DurationMS = now.Sub(r.started).Milliseconds()
	}
	if err != nil {
		line.Error = err.Error()
	}
	s.host.Log.Put(line)
}
