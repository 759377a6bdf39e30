package nic

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/guest/kmsg"
	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/rawcall"
)

// sentPath is a file that contains the number of packets that have left the guest.
const sentPath = "/sys/class/net/" + name + "/statistics/tx_packets"

// Layout of messages of sock_diag(7), in bytes.
const (
	idBytes      = 48 // struct inet_diag_sockid
	requestBytes = unix.SizeofNlMsghdr + 8 + idBytes
	answerBytes  = 4 + idBytes // the fields of struct inet_diag_msg that are used here
)

// wantedStates are the states of connections in which a program may wait for the peer: all states
// from SYN_SENT to LAST_ACK, and the states before a connection is accepted. The numbers are
// Linux's (include/net/tcp_states.h).
const wantedStates = 1<<1 | 1<<2 | 1<<3 | 1<<4 | 1<<5 | 1<<8 | 1<<9 | 1<<11 | 1<<12

// Connections closes the guest's TCP connections in a fork. The peers of these connections are
// connected to the guest that was forked, so a child that reads from such a connection would wait
// for ever. After the close, reads and writes return ECONNABORTED at once.
//
// Connections closes all connections from the interface's address to another address. Connections
// inside the guest continue, because a fork copies both ends of each such connection. UDP sockets
// are not closed, because they have no connection. Network namespaces that the guest has made are
// not searched.
//
// If a search found no connections and the guest has sent no packet since, there are still no
// connections. In this case a fork does not search, because a search would access the kernel's
// whole table in every child.
type Connections struct {
	diag  *netlink
	guest [4]byte
	sent  int // descriptor of the file sentPath

	// count is the content of the file sentPath when the file was last read; clean is the content
	// of that file at the latest search that found no connections.
	count, clean       [24]byte
	countLen, cleanLen int
	request            [requestBytes]byte
	found              []connection
	add                func(message []byte) // method value of take, made once so that a search allocates nothing
}

// connection is the kernel's identification of one socket.
type connection struct {
	family uint8
	id     [idBytes]byte
}

// OpenConnections opens the descriptors for Reset, so that a fork opens nothing. If the kernel
// cannot close connections, OpenConnections logs this fact and returns nil. In this case, the
// connections that a fork inherits end by timeout.
func OpenConnections(log *kmsg.Log) *Connections {
	c, err := openConnections()
	if err != nil {
		log.Warnf("connections of a fork will not be reset: %v", err)
		return nil
	}
	return c
}

func openConnections() (*Connections, error) {
	diag, err := openNetlink(unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, err
	}
	c := &Connections{diag: diag, guest: netip.MustParseAddr(frame.Guest).As4(), sent: -1}
	c.add = c.take
	if c.sent, err = unix.Open(sentPath, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		diag.close()
		return nil, &os.PathError{Op: "open", Path: sentPath, Err: err}
	}
	if err := c.probe(); err != nil {
		c.Close()
		return nil, fmt.Errorf("this kernel lacks CONFIG_INET_DIAG_DESTROY or the module tcp_diag: %w", err)
	}
	return c, nil
}

// probe checks that the kernel can list and close connections: it lists all connections, and tries
// to close a connection that does not exist. The right answer to the second request is ENOENT,
// because the connection does not exist. A kernel without tcp_diag answers ENOENT to the first
// request as well.
func (c *Connections) probe() error {
	if err := c.search(); err != nil {
		return err
	}
	c.cleanLen = 0 // so that the next Reset searches
	if err := c.destroy(&connection{family: unix.AF_INET}); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

func (c *Connections) Close() {
	c.diag.close()
	_ = unix.Close(c.sent)
}

// Reset closes the guest's connections. A nil Connections closes none.
func (c *Connections) Reset() error {
	if c == nil {
		return nil
	}
	// Search twice, because a connection that closes during the first search may hide another
	// connection. A third search would not help, because new connections belong to the forked
	// sandbox, and a busy sandbox would always have some.
	for range 2 {
		if err := c.search(); err != nil || len(c.found) == 0 {
			return err
		}
		for i := range c.found {
			if err := c.destroy(&c.found[i]); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("reset connections: %w", err)
			}
		}
	}
	return nil
}

// Rehearse makes the same search as Reset, but closes no connection.
func (c *Connections) Rehearse() error {
	if c == nil {
		return nil
	}
	c.cleanLen = 0
	return c.search()
}

// search sets c.found to the connections that Reset must close.
func (c *Connections) search() error {
	c.found = c.found[:0]
	n, err := rawcall.Pread(c.sent, c.count[:], 0)
	if err != nil {
		return fmt.Errorf("read %s: %w", sentPath, err)
	}
	if c.countLen = n; bytes.Equal(c.count[:n], c.clean[:c.cleanLen]) {
		return nil
	}
	// The search for AF_INET6 finds the connections whose IPv4 addresses have the form
	// ::ffff:a.b.c.d.
	for _, family := range [...]uint8{unix.AF_INET, unix.AF_INET6} {
		c.ask(family)
		if err := c.diag.call(c.request[:], unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP, c.add); err != nil {
			return fmt.Errorf("list connections: %w", err)
		}
	}
	if len(c.found) == 0 { // the count was read before the search, so a later connection changes it
		c.clean, c.cleanLen = c.count, c.countLen
	}
	return nil
}

// take parses a struct inet_diag_msg and adds its connection to c.found if the peer is outside the
// guest.
func (c *Connections) take(message []byte) {
	if len(message) < answerBytes {
		return
	}
	found := connection{family: message[0]}
	copy(found.id[:], message[4:])
	from, ok := address4(found.family, found.id[4:20])
	to, _ := address4(found.family, found.id[20:36])
	if ok && from == c.guest && to != c.guest {
		c.found = append(c.found, found)
	}
}

// address4 returns the IPv4 address in p, which has 16 bytes. It reports false for an IPv6 address.
func address4(family uint8, p []byte) (a [4]byte, ok bool) {
	if family == unix.AF_INET {
		return [4]byte(p), true
	}
	v6 := netip.AddrFrom16([16]byte(p))
	if !v6.Is4In6() {
		return a, false
	}
	return v6.Unmap().As4(), true
}

func (c *Connections) destroy(which *connection) error {
	c.ask(which.family)
	copy(c.request[unix.SizeofNlMsghdr+8:], which.id[:])
	return c.diag.call(c.request[:], unix.SOCK_DESTROY, unix.NLM_F_ACK, func([]byte) {})
}

// ask writes all fields of a struct inet_diag_req_v2 except the id to c.request.
func (c *Connections) ask(family uint8) {
	p := c.request[unix.SizeofNlMsghdr:]
	clear(p)
	p[0], p[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(p[4:], wantedStates)
}
