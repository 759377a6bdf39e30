// Package stack gives one sandbox its network: a user-space TCP/IP stack (gVisor's) on the
// sandbox's frame socket. For each connection of the guest, it opens a connection from this process
// to the server, and forwards the data between the two connections.
//
// Package policy decides about every flow before it is opened, and again when the policy changes.
// If the policy has rules for names, the guest's first bytes are read before the stack connects to
// the server. Only IPv4 is supported. The package bounds the resources that a guest can use in the
// process: open and half-open connections, waiting bytes, fragments, and packets per second. Idle
// flows end. The package knows neither the daemon nor other sandboxes.
package stack

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	gvisor "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/forkd/forkd/internal/net/dns"
	"github.com/forkd/forkd/internal/net/effect"
	"github.com/forkd/forkd/internal/net/policy"
	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/proto/netproto"
)

const nic = 1

var (
	guest = netip.MustParseAddr(frame.Guest)

	// gatewayDNS is the address at which a guest's resolver reaches package dns.
	gatewayDNS = netip.AddrPortFrom(netip.MustParseAddr(frame.Gateway), 53)
)

// Stack is the network of one sandbox.
type Stack struct {
	host     *Host
	id       string
	counters *Counters
	ipstack  *gvisor.Stack
	link     *link
	dns      *dns.Guest

	ctx    context.Context // cancelled when the stack is closed
	cancel context.CancelFunc
	ended  chan struct{} // closed when the frame socket's peer has hung up or the stack is closed
	tasks  sync.WaitGroup

	packets, opens *rate.Limiter
	logged, passes *rate.Limiter // limits for lines in the flow log: logged for refused flows, passes for all others
	up, down       *rate.Limiter
	echoes         chan struct{} // holds one value for each ping that waits for an answer
	queries        chan struct{} // holds one value for each DNS query over UDP
	chunks         room          // memory for the chunks of relays
	grown, roomy   room          // memory for buffers above smallBuffers; roomy counts only roomyBuffers and larger ones
	peeks          chan struct{} // holds one value for each connection that has not named its server yet
	fragments      fragments     // fragments of incomplete packets
	effects        *effect.List  // requests that were held

	mu       sync.Mutex
	closed   bool
	policy   netproto.Policy
	limits   netproto.Limits
	secrets  []netproto.Secret
	hold     netproto.Hold
	around   netproto.Policy // a copy of the policy that also denies the hosts of the hold
	injected int             // number of flows whose TLS this process terminates
	flows    map[*flow]struct{}
	udp      map[ports]*udpFlow // the UDP flows among s.flows, by their ports
}

// New returns a stack on a non-blocking frame socket, and starts reading from the socket. It takes
// ownership of the file, which Close closes.
func New(host *Host, file *os.File, as *netproto.Attach, c *Counters) (*Stack, error) {
	id := as.ID
	link, err := newLink(host, id, file, &c.Dropped)
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("frame socket of %s: %w", id, err)
	}
	s := &Stack{host: host, id: id, counters: c, link: link, ended: make(chan struct{}), policy: as.Policy,
		secrets: as.Secrets, flows: map[*flow]struct{}{}, udp: map[ports]*udpFlow{}, echoes: make(chan struct{}, maxEchoes),
		queries: make(chan struct{}, maxQueries), peeks: make(chan struct{}, maxPeeks)}
	s.chunks.most, s.chunks.of = maxChunks, &host.held
	s.grown.most, s.grown.of = host.grown.most/growPart, &host.grown
	s.roomy.most, s.roomy.of = s.grown.most/2, &s.grown
	s.fragments.room.most, s.fragments.room.of = maxFragments, &host.pieces
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.dns = dns.New(host.Resolver, s.nameAllowed, s.nameRefused)
	s.makeLimiters(as.Limits)
	s.effects = s.newEffects(as.Hold)
	s.setHoldLocked(as.Hold)
	if err := s.makeIPStack(); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("network stack of %s: %w", id, err)
	}
	c.Active.Store(true)
	s.tasks.Go(s.read)
	return s, nil
}

func (s *Stack) makeIPStack() error {
	s.ipstack = gvisor.New(gvisor.Options{
		NetworkProtocols: []gvisor.NetworkProtocolFactory{
			// Let packets to loopback addresses reach our code, so that the policy refuses them and
			// the flow log shows the reason.
			ipv4.NewProtocolWithOptions(ipv4.Options{AllowExternalLoopbackTraffic: true}),
		},
		TransportProtocols: []gvisor.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
	})
	if err := s.configure(); err != nil {
		s.ipstack.Destroy()
		return fmt.Errorf("%v", err)
	}
	s.ipstack.SetTransportProtocolHandler(tcp.ProtocolNumber, tcp.NewForwarder(s.ipstack, firstWindow, maxOpening,
		s.takeTCP).HandlePacket)
	s.ipstack.SetTransportProtocolHandler(udp.ProtocolNumber, s.takeUDP)
	return nil
}

// configure permits the network interface to accept packets to any address, and to send packets
// from any address.
func (s *Stack) configure() tcpip.Error {
	if err := s.ipstack.CreateNIC(nic, s.link); err != nil {
		return err
	}
	if err := s.ipstack.SetPromiscuousMode(nic, true); err != nil {
		return err
	}
	if err := s.ipstack.SetSpoofing(nic, true); err != nil {
		return err
	}
	gateway := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber,
		AddressWithPrefix: tcpip.AddrFrom4(gatewayDNS.Addr().As4()).WithPrefix()}
	if err := s.ipstack.AddProtocolAddress(nic, gateway, gvisor.AddressProperties{}); err != nil {
		return err
	}
	s.ipstack.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}})
	return s.configureTCP()
}

func (s *Stack) configureTCP() tcpip.Error {
	sack, moderate, recovery := tcpip.TCPSACKEnabled(true), tcpip.TCPModerateReceiveBufferOption(true),
		tcpip.TCPRecovery(0)
	wait, linger, retries := tcpip.TCPTimeWaitTimeoutOption(timeWait), tcpip.TCPLingerTimeoutOption(lingerTime),
		tcpip.TCPSynRetriesOption(synRetries)
	for _, option := range []tcpip.SettableTransportProtocolOption{
		&sack, &moderate, &recovery, &wait, &linger, &retries,
		&tcpip.TCPReceiveBufferSizeRangeOption{Min: minBuffer, Default: defaultBuffer, Max: maxBuffer},
		&tcpip.TCPSendBufferSizeRangeOption{Min: minBuffer, Default: defaultBuffer, Max: maxBuffer},
	} {
		if err := s.ipstack.SetTransportProtocolOption(tcp.ProtocolNumber, option); err != nil {
			return err
		}
	}
	return nil
}

// Ended returns a channel that is closed when the peer of the frame socket has hung up.
func (s *Stack) Ended() <-chan struct{} { return s.ended }

// Close resets all connections, waits until all tasks have ended, and frees the stack and its
// socket.
func (s *Stack) Close() {
	s.mu.Lock()
	s.closed = true
	for f := range s.flows {
		f.killLocked(errClosed)
	}
	s.mu.Unlock()
	s.cancel()
	s.ipstack.Close()
	s.link.close()
	s.tasks.Wait()
	s.ipstack.Wait()
	s.effects.Close()
	s.fragments.clear()
	s.counters.Active.Store(false)
}

// SetPolicy replaces policy, limits, secrets and hold. It resets flows that the new policy denies.
// If the new policy needs to know the server's name for a flow that was not peeked, SetPolicy also
// resets that flow. If the secrets change, it resets all flows to which the old or the new secrets
// could apply. If there is a new hold, SetPolicy resets all flows to which the hold could apply. If
// the hold ends, requests that wait go to their servers.
func (s *Stack) SetPolicy(to *netproto.SetPolicy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.policy = to.Policy
	s.setLimitsLocked(to.Limits)
	other := !slices.Equal(s.secrets, to.Secrets)
	s.secrets = to.Secrets
	held := to.Hold.On() && !to.Hold.Equal(&s.hold)
	s.setHoldLocked(to.Hold)
	left := maxComparisons
	for f := range s.flows {
		if other && f.To.Port() == httpsPort {
			f.killLocked(errSecrets)
		}
		if held && isWeb(f) {
			f.killLocked(errHold)
		}
		s.decideAgainLocked(f, "reset by a new policy", &left)
	}
}

// Redecide applies the policy again to each flow whose destination address has become an address of
// the host since the flow began. It resets a flow that the policy no longer permits. It also resets
// a flow if the decisions would need more than maxComparisons comparisons.
func (s *Stack) Redecide() {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := maxComparisons
	for f := range s.flows {
		if !f.Own && s.host.listed(f.To.Addr()) {
			f.Own = true
			s.decideAgainLocked(f, "reset by a new address of the host", &left)
		}
	}
}

// maxComparisons bounds how many names are compared with rules during one request of the daemon.
// This number of comparisons takes some tenths of a second, during which requests for all other
// sandboxes wait. A tenth of this number is enough for a thousand connections, if each address has
// three names and the policy has the maximum number of rules.
const maxComparisons = 16 << 20

// decideAgainLocked resets a flow that the policy no longer permits. The decision may take at most
// *left comparisons of names. Their number is subtracted from *left. If the decision would need
// more comparisons, the flow is also reset.
func (s *Stack) decideAgainLocked(f *flow, why string, left *int) {
	if !f.decided || f.ctx.Err() != nil {
		return
	}
	if *left -= (1 + len(f.Names)) * (1 + len(s.policy.Allow) + len(s.around.Deny)); *left < 0 {
		f.killLocked(fmt.Errorf("%s: too many connections, names and rules to decide about each", why))
		return
	}
	if verdict, reason := s.verdictLocked(f); verdict != policy.Pass {
		s.counters.refuse(string(reason))
		f.killLocked(fmt.Errorf("%s: %s", why, reason))
	}
}

// Sweep ends idle flows, drops packets that have been incomplete for too long, and gives back memory
// that the link does not need.
func (s *Stack) Sweep(now time.Time) {
	s.fragments.sweep(now)
	s.link.shrink()
	s.mu.Lock()
	defer s.mu.Unlock()
	for f := range s.flows {
		if now.Sub(time.Unix(0, f.last.Load())) > f.idleLimit() {
			f.killLocked(errIdle)
		}
	}
}

// answer returns the answer to a DNS query of the guest, or nil.
func (s *Stack) answer(ctx context.Context, query []byte, tcp bool) []byte {
	s.counters.DNSQueries.Add(1)
	return s.dns.Answer(ctx, query, tcp)
}

func (s *Stack) nameAllowed(name string) (bool, dns.Reason) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ok, reason := policy.Names(&s.policy, name)
	return ok, dns.Reason(reason)
}

func (s *Stack) nameRefused(name string, reason dns.Reason) {
	s.mu.Lock()
	why, fix := policy.ExplainName(&s.policy, name, policy.Reason(reason))
	s.mu.Unlock()
	s.refused(record{protocol: "dns", name: name, why: why, fix: fix}, string(reason))
}
