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

// sentPath counts the packets that have left the guest.
const sentPath = "/sys/class/net/" + name + "/statistics/tx_packets"

// Layout of messages of sock_diag(7), in bytes.
const (
	idBytes      = 48 // struct inet_diag_sockid
	requestBytes = unix.SizeofNlMsghdr + 8 + idBytes
	answerBytes  = 4 + idBytes // the part of struct inet_diag_msg that is read here
)

// wantedStates are the states of connections for which a program may wait: from SYN_SENT to
// LAST_ACK, and not yet accepted ones. The numbers are Linux's (include/net/tcp_states.h).
const wantedStates = 1<<1 | 1<<2 | 1<<3 | 1<<4 | 1<<5 | 1<<8 | 1<<9 | 1<<11 | 1<<12

// Connections closes the guest's TCP connections in a fork. Their other ends are connected to the
// source, and a child that reads from such a connection would wait for ever. Readers and writers
// get ECONNABORTED at once.
//
// It closes all connections from the interface's address to another. Connections inside the guest
// continue, because both of their ends were copied. So do UDP sockets, which have no other end, and
// connections in network namespaces that the guest has made.
//
// If a search found no connections and the guest has sent nothing since, it still has none and is
// not searched again: a search would touch the kernel's whole table in every child.
type Connections struct {
	diag  *netlink
	guest [4]byte
	sent  int // descriptor of sentPath

	count, clean       [24]byte // number of packets sent: now, and when there were no connections
	countLen, cleanLen int
	request            [requestBytes]byte
	found              []connection
	add                func(message []byte) // take, made once: a search allocates nothing
}

// connection identifies one socket to the kernel.
type connection struct {
	family uint8
	id     [idBytes]byte
}

// OpenConnections opens the descriptors for Reset, so that a fork opens nothing. If the kernel
// cannot close connections, it logs that and returns nil: those of a fork then end by timeout.
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

// probe asks the kernel for its connections, and to close a nonexistent one. The right answer to
// the second request is ENOENT; without tcp_diag both answers are ENOENT.
func (c *Connections) probe() error {
	if err := c.search(); err != nil {
		return err
	}
	c.cleanLen = 0 // Reset searches itself
	if err := c.destroy(&connection{family: unix.AF_INET}); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// Close releases what OpenConnections opened.
func (c *Connections) Close() {
	c.diag.close()
	_ = unix.Close(c.sent)
}

// Reset closes the guest's connections. A nil Connections closes none.
func (c *Connections) Reset() error {
	if c == nil {
		return nil
	}
	// Search at most twice. A connection that closes during the first search may hide another one.
	// Connections made since then belong to the child, and a busy child would always have some.
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

// Rehearse does what Reset does, but closes nothing.
func (c *Connections) Rehearse() error {
	if c == nil {
		return nil
	}
	c.cleanLen = 0
	return c.search()
}

// search fills found.
func (c *Connections) search() error {
	c.found = c.found[:0]
	n, err := rawcall.Pread(c.sent, c.count[:], 0)
	if err != nil {
		return fmt.Errorf("read %s: %w", sentPath, err)
	}
	if c.countLen = n; bytes.Equal(c.count[:n], c.clean[:c.cleanLen]) {
		return nil
	}
	for _, family := range [...]uint8{unix.AF_INET, unix.AF_INET6} { // AF_INET6 for ::ffff:a.b.c.d
		c.ask(family)
		if err := c.diag.call(c.request[:], unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP, c.add); err != nil {
			return fmt.Errorf("list connections: %w", err)
		}
	}
	if len(c.found) == 0 { // valid for the time when count was read: later connections have changed it
		c.clean, c.cleanLen = c.count, c.countLen
	}
	return nil
}

// take keeps a struct inet_diag_msg of the dump if its connection leaves the guest.
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

// address4 returns the IPv4 address in an address of 16 bytes. AF_INET uses the first 4 bytes.
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

// ask fills in struct inet_diag_req_v2 except the id.
func (c *Connections) ask(family uint8) {
	p := c.request[unix.SizeofNlMsghdr:]
	clear(p)
	p[0], p[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(p[4:], wantedStates)
}
