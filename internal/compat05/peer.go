package compat05

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// isOurs returns an error if the other end of a connection is not a program of this user on this
// host. The protocol of forkd 0.5's agent has no token, so without this check every user of the
// host could run commands in sandboxes.
func isOurs(conn net.Conn) error {
	from, to := addrOf(conn.RemoteAddr()), addrOf(conn.LocalAddr())
	if !to.Addr().IsValid() || from.Addr() != to.Addr() && !from.Addr().IsLoopback() {
		return fmt.Errorf("%s is not on this host", conn.RemoteAddr())
	}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		p, err := os.ReadFile(table)
		if errors.Is(err, os.ErrNotExist) {
			continue // the host has no IPv6
		}
		if err != nil {
			return err
		}
		if uid, ok := ownerOf(string(p), from, to); ok {
			if uid != os.Getuid() {
				return fmt.Errorf("it is by user %d, and sandboxes are reached by user %d only", uid, os.Getuid())
			}
			return nil
		}
	}
	return fmt.Errorf("nobody knows whose %s is", conn.RemoteAddr())
}

func addrOf(a net.Addr) netip.AddrPort {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := tcp.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// Columns of /proc/net/tcp (Linux, Documentation/networking/proc_net_tcp.rst).
const (
	localColumn = 1
	peerColumn  = 2
	uidColumn   = 7
	inodeColumn = 9
)

// ownerOf returns the user of a socket, according to /proc/net/tcp or tcp6. The parameters local
// and peer are the addresses of the socket and of its peer. A closed socket has the inode 0 in this
// table. For a closed socket, ownerOf returns false, even though the table shows root as its user.
func ownerOf(table string, local, peer netip.AddrPort) (uid int, ok bool) {
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) <= inodeColumn || f[inodeColumn] == "0" {
			continue
		}
		if a, err := parseProcAddr(f[localColumn]); err != nil || a != local {
			continue
		}
		if a, err := parseProcAddr(f[peerColumn]); err != nil || a != peer {
			continue
		}
		uid, err := strconv.Atoi(f[uidColumn])
		return uid, err == nil
	}
	return 0, false
}

// parseProcAddr parses an address of /proc/net/tcp. It consists of 32-bit words in the host's byte
// order, and the port, all in hexadecimal.
func parseProcAddr(text string) (netip.AddrPort, error) {
	address, port, _ := strings.Cut(text, ":")
	p, err := hex.DecodeString(address)
	if err != nil || len(p)%4 != 0 {
		return netip.AddrPort{}, fmt.Errorf("%q is no address", text)
	}
	for word := range slices.Chunk(p, 4) {
		slices.Reverse(word) // amd64 is little-endian
	}
	ip, ok := netip.AddrFromSlice(p)
	n, err := strconv.ParseUint(port, 16, 16)
	if err != nil || !ok {
		return netip.AddrPort{}, fmt.Errorf("%q is no address", text)
	}
	return netip.AddrPortFrom(ip.Unmap(), uint16(n)), nil
}
