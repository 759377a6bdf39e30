package compat05

import (
	"net"
	"net/netip"
	"testing"
)

// The user of a connection is read from the kernel's tables. A closed socket has no user.
func TestOwnersOfConnections(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 0200007F:22B8 01 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0000000000000000 20 4 30 10 -1
   1: 0100007F:1F91 0200007F:22B8 06 00000000:00000000 00:00000000 00000000     0        0 0 3 0000000000000000
   2: 0000000000000000FFFF00000100007F:1F92 0000000000000000FFFF00000200007F:22B8 01 0:0 0:0 0 7 0 12 1 0 20 4 30 10 -1
   3: nonsense
`
	guest := netip.MustParseAddrPort("127.0.0.2:8888")
	for _, c := range []struct {
		from string
		uid  int
		ok   bool
	}{{"127.0.0.1:8080", 1000, true}, {"127.0.0.1:8081", 0, false}, {"127.0.0.1:8082", 7, true},
		{"127.0.0.1:8083", 0, false}} {
		if uid, ok := ownerOf(table, netip.MustParseAddrPort(c.from), guest); uid != c.uid || ok != c.ok {
			t.Errorf("%s: %d, %v, want %d, %v", c.from, uid, ok, c.uid, c.ok)
		}
	}
}

// A connection of this program is accepted, over IPv4 and over IPv6.
func TestOwnConnectionsAreLetIn(t *testing.T) {
	for _, address := range []string{"127.1.2.3:0", "[::1]:0"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Logf("not tried: %v", err)
			continue
		}
		defer l.Close()
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := isOurs(conn); err != nil {
			t.Errorf("%s: %v", address, err)
		}
		if err := client.(*net.TCPConn).CloseWrite(); err != nil { // as clients do before they read the answer
			t.Fatal(err)
		}
		if err := isOurs(conn); err != nil {
			t.Errorf("%s, half closed: %v", address, err)
		}
	}
}
