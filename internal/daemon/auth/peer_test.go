package auth

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

func TestParsePeer(t *testing.T) {
	for text, want := range map[string]PeerRule{
		"user:1234": {ID: 1234, Scope: Run}, "group:7=read": {Group: true, ID: 7, Scope: Read},
		"user:root=admin": {Scope: Admin},
		"group:root":      {Group: true, Scope: Run},
	} {
		if got, err := ParsePeer(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, bad := range []string{"", "root", "user:", "user:=run", "uid:1", "user:1=root", "user:no-such-user-here",
		"group:no-such-group-here",
		"user:4294967295", "user:99999999999", "user:-1"} {
		if got, err := ParsePeer(bad); err == nil {
			t.Errorf("%q is taken as %+v", bad, got)
		}
	}
}

// Only the daemon's own user, root and listed users have rights at the unix socket.
func TestByPeer(t *testing.T) {
	own := uint32(os.Getuid())
	g := &Guard{Peers: []PeerRule{{ID: own + 1, Scope: Read}, {Group: true, ID: 4242, Scope: Run},
		{ID: own + 2, Scope: Admin}}}
	for _, c := range []struct {
		uid, gid uint32
		want     Scope
	}{
		{own, 1, Admin}, {0, 1, Admin}, {own + 1, 1, Read}, {own + 1, 4242, Run}, {own + 2, 4242, Admin}, {own + 3, 1, 0},
		{own + 3, own + 1, 0}, {nobody, nobody, 0},
	} {
		if got := g.byPeer(Peer{UID: c.uid, GID: c.gid}); got.Scope != c.want {
			t.Errorf("uid %d, gid %d: %+v, want the scope %v", c.uid, c.gid, got, c.want)
		}
		r := httptest.NewRequest("POST", "/", nil)
		who, err := g.Identify(r.WithContext(context.WithValue(r.Context(), peerKey{}, Peer{UID: c.uid, GID: c.gid})))
		if (err != nil) != (c.want == 0) || who.Who == "" {
			t.Errorf("uid %d, gid %d: %+v, %v", c.uid, c.gid, who, err)
		}
	}
}

// The kernel reports the peer of a connection, even through a listener that wraps connections.
func TestPeerOfAConnection(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	who := make(chan Principal, 1)
	g := &Guard{}
	server := &http.Server{ConnContext: WithPeer, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		p, err := g.Identify(r)
		if peer, ok := PeerFrom(r.Context()); err != nil || !ok || peer.PID != os.Getpid() {
			t.Errorf("%+v, %v, %v", peer, ok, err)
		}
		who <- p
	})}
	go server.Serve(wrapping{l})
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn,
		error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	resp, err := client.Get("http://forkd")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	client.CloseIdleConnections()
	if p := <-who; p.Who != "uid:"+strconv.Itoa(os.Getuid()) || p.Scope != Admin {
		t.Errorf("%+v", p)
	}
}

type wrapping struct{ net.Listener }

func (l wrapping) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return wrapped{c}, err
}

type wrapped struct{ net.Conn }

func (w wrapped) NetConn() net.Conn { return w.Conn }

func TestPeerName(t *testing.T) {
	for addr, want := range map[string]string{
		"192.0.2.1:80": "192.0.2.1", "[::ffff:192.0.2.1]:80": "192.0.2.1", "[2001:db8::1:2]:80": "2001:db8::/64",
		"[fe80::1%eth0]:80": "fe80::/64", "": "",
	} {
		if got := PeerName(t.Context(), addr); got != want {
			t.Errorf("%q: %q, want %q", addr, got, want)
		}
	}
	if got := PeerName(context.WithValue(t.Context(), peerKey{}, Peer{UID: 7}), "@"); got != "uid:7" {
		t.Errorf("at a unix socket: %q", got)
	}
}
