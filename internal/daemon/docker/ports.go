package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/daemon/inbound"
	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/host/owner"
)

// binding is an address of the host that leads to a port of a container.
type binding struct {
	HostIP   string `json:"HostIp"`
	HostPort string // empty or 0: the host chooses a port
}

// publication is a port of a container with its binding.
type publication struct {
	port uint16 // in the container
	binding
	before string // address that the host chose for an earlier daemon; empty: none
}

// Bounds on published ports.
const (
	maxPorts     = 64   // of one container
	maxListeners = 2048 // of all running containers together; one owner can have three quarters of them
)

// Addresses on which ports may be published. The default is loopback.
const (
	loopback  = "127.0.0.1"
	loopback6 = "::1"
)

// publications() returns the ports that a container publishes, sorted by the port in the container.
func publications(h *host, exposed map[string]struct{}) (list []publication, err error) {
	ports := make(map[string][]binding, len(h.PortBindings))
	for name, bindings := range h.PortBindings {
		if ports[name] = bindings; len(bindings) == 0 {
			ports[name] = []binding{{}}
		}
	}
	for name := range exposed {
		if _, err := portOf("ExposedPorts", name); err != nil {
			return nil, err
		}
		if _, bound := ports[name]; h.PublishAllPorts && !bound {
			ports[name] = []binding{{}}
		}
	}
	for name, bindings := range ports {
		port, err := portOf("HostConfig.PortBindings", name)
		if err != nil {
			return nil, err
		}
		for _, b := range bindings {
			if err := b.check(); err != nil {
				return nil, err
			}
			list = append(list, publication{port: port, binding: b})
		}
	}
	if len(list) > maxPorts {
		return nil, face.BadRequest("HostConfig.PortBindings: %d ports: want at most %d", len(list), maxPorts)
	}
	slices.SortFunc(list, func(a, b publication) int { return int(a.port) - int(b.port) })
	return list, nil
}

// portOf parses a port such as 80/tcp.
func portOf(field, name string) (uint16, error) {
	number, protocol, _ := strings.Cut(name, "/")
	if protocol != "" && protocol != "tcp" {
		return 0, unsupported(field+" "+name, "publish a TCP port")
	}
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || n == 0 {
		return 0, face.BadRequest("%s: %.100q: want a port such as 80/tcp", field, name)
	}
	return uint16(n), nil
}

// check refuses bindings that other hosts could reach. A published port needs no token and no
// signed URL, unlike all other ways to a port.
func (b *binding) check() error {
	if b.HostIP != "" && b.HostIP != loopback && b.HostIP != loopback6 {
		return unsupported("HostConfig.PortBindings: HostIp "+b.HostIP,
			"use "+loopback+" or "+loopback6+", or omit it, and the port is published on "+loopback+
				"; other hosts reach ports through forkd's API (docs/network.md)")
	}
	if _, err := strconv.ParseUint(b.HostPort, 10, 16); err != nil && b.HostPort != "" {
		return face.BadRequest("HostConfig.PortBindings: HostPort %.100q: want one port, or nothing", b.HostPort)
	}
	return nil
}

// firstPort returns the lowest port of the host that every user of the host may open. Servers of
// the host itself use the lower ports.
func firstPort() int {
	const usual = 1024
	p, err := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start")
	if err != nil {
		return usual
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(p)))
	if err != nil {
		return usual
	}
	return n
}

// mayPublish checks the ports of the host that a client wants to publish. If a port is below the
// given one, the client needs the scope admin. Without this rule, a client could take the port of
// one of the host's servers that is not running at the moment.
func mayPublish(who auth.Principal, list []publication, first int) error {
	for _, p := range list {
		n, err := strconv.Atoi(p.HostPort)
		if err != nil || n == 0 || n >= first {
			continue // the host chooses a port, or every user of the host may open this port
		}
		if err := who.Need(auth.Admin); err != nil {
			return fmt.Errorf("HostConfig.PortBindings: HostPort %d: want a port from %d: %w", n, first, err)
		}
	}
	return nil
}

// listener is a published port that is open.
type listener struct {
	net.Listener
	port  uint16 // port in the container
	leave func() // frees the place among maxListeners
}

// openPorts opens the published ports of a container. The argument "of" is the owner of its sandbox.
// The caller holds the container's lock.
func (s *Server) openPorts(c *container, of string, sp *spec) error {
	wanted, err := publications(&sp.Host, sp.Config.ExposedPorts)
	if err != nil {
		return err
	}
	return s.open(c, of, wanted)
}

// open replaces the open ports of a container.
func (s *Server) open(c *container, of string, wanted []publication) error {
	c.closePorts()
	open := make([]listener, 0, len(wanted))
	for _, p := range wanted {
		l, err := s.listen(of, &p)
		if err != nil {
			closeAll(open)
			return err
		}
		open = append(open, l)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone || s.life.Err() != nil { // after this, nothing would close the ports
		closeAll(open)
		return noContainer(containerID(c.id))
	}
	c.ports, c.state.Ports = open, nil
	for _, l := range open {
		c.state.Ports = append(c.state.Ports, record.ContainerPort{Port: uint32(l.port), Address: l.Addr().String()})
		s.tasks.Go(func() { s.accept(c, l) })
	}
	return nil
}

// listen opens a published port. The argument "of" is the owner of the container's sandbox.
func (s *Server) listen(of string, p *publication) (l listener, err error) {
	l.port = p.port
	if l.leave, err = s.listeners.Enter(owner.FairShare(of, maxListeners)); err != nil {
		return l, face.NewError(http.StatusTooManyRequests, "HostConfig.PortBindings: too many published ports are open: "+
			"stop containers that publish ports")
	}
	if p.before != "" {
		if l.Listener, err = net.Listen("tcp", p.before); err == nil {
			return l, nil
		}
	}
	ip, number := cmp.Or(p.HostIP, loopback), cmp.Or(p.HostPort, "0")
	if l.Listener, err = net.Listen("tcp", net.JoinHostPort(ip, number)); err != nil {
		l.leave()
		err = conflict("driver failed programming external connectivity: Bind for %s:%s failed: %v", ip, number, err)
	}
	return l, err
}

func closeAll(list []listener) {
	for _, l := range list {
		l.Close()
		l.leave()
	}
}

// closePorts closes the published ports. Open connections continue.
func (c *container) closePorts() {
	c.mu.Lock()
	defer c.mu.Unlock()
	closeAll(c.ports)
	c.ports = nil
}

// acceptAgain is the time between attempts to accept a connection, for example while the daemon has
// no descriptors left.
const acceptAgain = 100 * time.Millisecond

// accept carries the connections of a published port until the port is closed or the daemon stops.
func (s *Server) accept(c *container, l listener) {
	defer context.AfterFunc(s.life, func() { l.Close() })()
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(acceptAgain)
			continue
		}
		go func() {
			defer conn.Close()
			stream, ok := conn.(inbound.Stream)
			if !ok {
				return
			}
			// An error ends the connection. The metrics count it.
			_, _ = s.Face.CarryStream(s.life, "tcp", c.id, l.port, func() (inbound.Stream, <-chan struct{}, error) {
				return stream, nil, nil
			})
		}()
	}
}

// closeAllPorts closes the ports of all containers.
func (s *Server) closeAllPorts() {
	for _, c := range s.book.list() {
		c.closePorts()
	}
}

// published returns the addresses of a container's open ports, by port in Docker's form. A port that
// is only exposed has no address.
func (c *container) published(exposed map[string]struct{}) map[string][]binding {
	out := map[string][]binding{}
	for name := range exposed {
		out[name] = nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.ports {
		ip, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			continue // never: it is the address of a TCP socket
		}
		name := strconv.Itoa(int(l.port)) + "/tcp"
		out[name] = append(out[name], binding{HostIP: ip, HostPort: port})
	}
	return out
}

// listedPort is a port of a container in a list.
type listedPort struct {
	IP          string `json:"IP,omitempty"`
	PrivatePort uint16
	PublicPort  uint16 `json:"PublicPort,omitempty"`
	Type        string
}

// listPorts returns the ports of a container for a list.
func (c *container) listPorts() []listedPort {
	list := []listedPort{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.ports {
		if at, err := netip.ParseAddrPort(l.Addr().String()); err == nil {
			list = append(list, listedPort{at.Addr().String(), l.port, at.Port(), "tcp"})
		}
	}
	return list
}

// adoptPorts opens the ports of a container that an earlier daemon has started. Ports that the host
// has chosen stay the same if no other program has taken them.
func (s *Server) adoptPorts(c *container, of string, sp *spec) {
	wanted, err := publications(&sp.Host, sp.Config.ExposedPorts)
	if err == nil {
		st, _, _ := c.now()
		keepChosen(wanted, st.Ports)
		err = s.open(c, of, wanted)
	}
	if err != nil {
		s.Face.Log.Warn("the ports of a container are not published again", "sandbox", c.id, "error", err)
		return
	}
	if len(wanted) > 0 {
		s.note(c, func(*state) {}) // the host may have chosen other ports
	}
}

// keepChosen sets the field "before" of each publication whose port the host chooses. The new value
// is the address that the publication had under the earlier daemon.
func keepChosen(wanted []publication, had []record.ContainerPort) {
	had = slices.Clone(had)
	for n := range wanted {
		p := &wanted[n]
		if p.HostPort != "" && p.HostPort != "0" {
			continue
		}
		ip := cmp.Or(p.HostIP, loopback)
		i := slices.IndexFunc(had, func(h record.ContainerPort) bool {
			host, _, err := net.SplitHostPort(h.Address)
			return err == nil && host == ip && h.Port == uint32(p.port)
		})
		if i >= 0 {
			p.before = had[i].Address
			had = slices.Delete(had, i, i+1)
		}
	}
}
