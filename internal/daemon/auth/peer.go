package auth

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Peer is the process at the other end of a unix socket, at the time when it connected
// (SO_PEERCRED, unix(7)).
type Peer struct {
	PID      int
	UID, GID uint32
}

type peerKey struct{}

// WithPeer returns the context for a connection's requests. If the connection is over a unix
// socket, the context carries the peer.
func WithPeer(ctx context.Context, c net.Conn) context.Context {
	for {
		inner, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		c = inner.NetConn()
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, peerOf(conn))
}

// nobody stands for a peer without credentials from the kernel. No rule matches it.
const nobody = ^uint32(0)

func peerOf(conn *net.UnixConn) Peer {
	peer := Peer{UID: nobody, GID: nobody}
	raw, err := conn.SyscallConn()
	if err != nil {
		return peer
	}
	_ = raw.Control(func(fd uintptr) { // a closed connection has no peer
		if c, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			peer = Peer{int(c.Pid), c.Uid, c.Gid}
		}
	})
	return peer
}

// PeerFrom returns the peer of a request that came over a unix socket.
func PeerFrom(ctx context.Context) (Peer, bool) {
	p, ok := ctx.Value(peerKey{}).(Peer)
	return p, ok
}

// PeerName returns the name of the client of a connection, for limits that apply to each client.
// The context and the remote address are those of the connection. For a unix socket, the result is
// the name of the user. For IPv4, it is the address. For IPv6, it is the /64 network, because one
// host usually has all addresses of such a network. So a client cannot get more resources by
// opening more connections or by using more addresses.
func PeerName(ctx context.Context, remoteAddr string) string {
	if peer, ok := PeerFrom(ctx); ok {
		return peerWho(peer.UID)
	}
	addr, err := netip.ParseAddrPort(remoteAddr)
	if err != nil {
		return ""
	}
	ip := addr.Addr().Unmap()
	if ip.Is6() {
		if network, err := ip.WithZone("").Prefix(64); err == nil {
			return network.String()
		}
	}
	return ip.String()
}

// PeerRule lets a user, or the members of a group, use the unix socket. The daemon's own user and
// root need no rule.
type PeerRule struct {
	Group bool
	ID    uint32
	Scope Scope
}

// ParsePeer reads a rule: user:NAME or group:NAME, with an optional =SCOPE at the end. NAME may be
// a number. The default scope is run.
func ParsePeer(text string) (r PeerRule, err error) {
	kind, rest, _ := strings.Cut(text, ":")
	name, scope, _ := strings.Cut(rest, "=")
	if r.Scope, err = ParseScope(cmp.Or(scope, Run.String())); err != nil {
		return r, err
	}
	if r.Scope == Pull { // daemons fetch snapshots over TCP
		return r, fmt.Errorf("%q: the scope %s is only for tokens: want read, run or admin", text, Pull)
	}
	id := name
	switch r.Group = kind == "group"; {
	case kind != "user" && kind != "group", name == "":
		return r, fmt.Errorf("%q: want user:NAME or group:NAME, with an optional =SCOPE", text)
	case isNumber(name):
	case r.Group:
		g, err := user.LookupGroup(name)
		if err != nil {
			return r, err
		}
		id = g.Gid
	default:
		u, err := user.Lookup(name)
		if err != nil {
			return r, err
		}
		id = u.Uid
	}
	n, err := strconv.ParseUint(id, 10, 32)
	if err != nil || uint32(n) == nobody {
		return r, fmt.Errorf("%q: %s is not the id of a user or group", text, id)
	}
	r.ID = uint32(n)
	return r, nil
}

func isNumber(text string) bool {
	return strings.Trim(text, "0123456789") == ""
}

// byPeer returns the principal of a peer. A peer without a rule has no rights.
func (g *Guard) byPeer(p Peer) Principal {
	who := Principal{Who: peerWho(p.UID)}
	switch {
	case p.UID == nobody:
		who.Who = "uid:unknown"
	case p.UID == 0, p.UID == uint32(os.Getuid()):
		who.Scope = Admin
	default:
		for _, r := range g.Peers {
			if r.matches(p) {
				who.Scope = max(who.Scope, r.Scope)
			}
		}
	}
	return who
}

// peerWho returns Principal.Who for a user at the other end of the unix socket.
func peerWho(uid uint32) string { return fmt.Sprintf("%s%d", uidWho, uid) }

// Operator reports whether p is root or the daemon's own user, connected to the unix socket without
// a token.
func (p Principal) Operator() bool {
	return p.Who == peerWho(0) || p.Who == peerWho(uint32(os.Getuid()))
}

func (r PeerRule) matches(p Peer) bool {
	if !r.Group {
		return r.ID == p.UID
	}
	return r.ID == p.GID || slices.Contains(groupsOf(p.UID), strconv.FormatUint(uint64(r.ID), 10))
}

// groupsOf returns all groups of a user according to the host's user database. The kernel reports
// only one of a peer's groups.
func groupsOf(uid uint32) []string {
	u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil {
		return nil
	}
	groups, _ := u.GroupIds() // if the database cannot be read, no group rule matches
	return groups
}
