package auth

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Peer is the process at the other end of a unix socket, as it was when it connected (SO_PEERCRED,
// unix(7)).
type Peer struct {
	PID      int
	UID, GID uint32
}

type peerKey struct{}

// WithPeer returns the context of a connection, with its peer if it comes over a unix socket.
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

// nobody is a peer that the kernel did not tell. No rule is for it.
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

// PeerFrom returns the peer of a request over a unix socket.
func PeerFrom(ctx context.Context) (Peer, bool) {
	p, ok := ctx.Value(peerKey{}).(Peer)
	return p, ok
}

// PeerRule lets a user, or the members of a group, use the unix socket. The daemon's own user and
// root need none.
type PeerRule struct {
	Group bool
	ID    uint32
	Scope Scope
}

// ParsePeer reads a rule: user:NAME or group:NAME, or a number in place of the name, and perhaps
// =SCOPE; without it the scope is run.
func ParsePeer(text string) (r PeerRule, err error) {
	kind, rest, _ := strings.Cut(text, ":")
	name, scope, _ := strings.Cut(rest, "=")
	if r.Scope, err = ParseScope(cmp.Or(scope, Run.String())); err != nil {
		return r, err
	}
	id := name
	switch r.Group = kind == "group"; {
	case kind != "user" && kind != "group", name == "":
		return r, fmt.Errorf("%q: want user:NAME or group:NAME, and perhaps =SCOPE", text)
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
		return r, fmt.Errorf("%q: %s is no id of a user or group", text, id)
	}
	r.ID = uint32(n)
	return r, nil
}

func isNumber(text string) bool {
	return strings.Trim(text, "0123456789") == ""
}

// byPeer returns who a peer is. One that no rule is for may do nothing.
func (g *Guard) byPeer(p Peer) Principal {
	who := Principal{Who: fmt.Sprintf("uid:%d", p.UID)}
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

func (r PeerRule) matches(p Peer) bool {
	if !r.Group {
		return r.ID == p.UID
	}
	return r.ID == p.GID || slices.Contains(groupsOf(p.UID), strconv.FormatUint(uint64(r.ID), 10))
}

// groupsOf returns the groups of a user as the host's user database has them: the kernel tells only
// one of a peer's.
func groupsOf(uid uint32) []string {
	u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil {
		return nil
	}
	groups, _ := u.GroupIds() // a database that cannot be read has no members
	return groups
}
