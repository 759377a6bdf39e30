// Package hostroute asks the kernel whether an address belongs to this host. It sends no packets
// and needs no privileges. Each query opens a socket of rtnetlink(7).
package hostroute

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// IsLocal reports whether the kernel delivers packets for an IPv4 address to this host itself. If
// the query fails, it returns true, because callers deny access to local addresses.
func IsLocal(addr netip.Addr) bool {
	kind, err := routeType(addr)
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH):
		return false // there is no route to the address
	case err != nil:
		return true // such as EMFILE, after which a connection would fail too
	}
	switch kind {
	case unix.RTN_UNICAST, unix.RTN_UNREACHABLE, unix.RTN_BLACKHOLE, unix.RTN_PROHIBIT, unix.RTN_THROW:
		return false
	}
	return true // for example local, or broadcast: the host itself receives these packets too
}

// routeType returns the type of the route to an address (RTN_*).
func routeType(addr netip.Addr) (kind byte, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, routeRequest(addr), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, err
	}
	buf := make([]byte, 4096) // one message with few attributes fits
	n, _, err := unix.Recvfrom(fd, buf, 0)
	for errors.Is(err, unix.EINTR) {
		n, _, err = unix.Recvfrom(fd, buf, 0)
	}
	if err != nil {
		return 0, err
	}
	messages, err := syscall.ParseNetlinkMessage(buf[:n])
	if err != nil || len(messages) == 0 {
		return 0, errors.Join(err, errors.New("no answer about a route"))
	}
	switch m := messages[0]; {
	case m.Header.Type == unix.NLMSG_ERROR && len(m.Data) >= 4:
		return 0, unix.Errno(-int32(binary.NativeEndian.Uint32(m.Data)))
	case m.Header.Type == unix.RTM_NEWROUTE && len(m.Data) >= unix.SizeofRtMsg:
		return m.Data[7], nil // field rtm_type of struct rtmsg
	}
	return 0, errors.New("no answer about a route")
}

// routeRequest returns the query: a struct nlmsghdr, a struct rtmsg and the attribute RTA_DST.
func routeRequest(addr netip.Addr) []byte {
	const size = unix.SizeofNlMsghdr + unix.SizeofRtMsg + unix.SizeofRtAttr + 4
	ne := binary.NativeEndian
	p := ne.AppendUint32(make([]byte, 0, size), size)
	p = ne.AppendUint16(p, unix.RTM_GETROUTE)
	p = ne.AppendUint16(p, unix.NLM_F_REQUEST)
	p = append(p, make([]byte, 8)...)                 // sequence number and port id
	p = append(p, unix.AF_INET, 32, 0, 0, 0, 0, 0, 0) // family, and a destination prefix of 32 bits
	p = append(p, make([]byte, 4)...)                 // no flags
	p = ne.AppendUint16(p, unix.SizeofRtAttr+4)       // struct rtattr
	p = ne.AppendUint16(p, unix.RTA_DST)
	return append(p, addr.AsSlice()...)
}
