// Package nic is the guest's network interface. At boot it configures the interface, with addresses
// that are the same in every VM (package frame). In a fork it closes the TCP connections that the
// fork has inherited.
//
// It knows no policy, because forkd-net decides what the guest may reach. It disables IPv6, so that
// an idle guest sends no router solicitations.
package nic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/frame"
)

// name is the name of the first Ethernet interface in Linux, if no program has renamed the
// interface.
const name = "eth0"

// Up gives the interface its address, activates the interface, and routes everything except
// loopback to the gateway.
func Up() error {
	no6 := "/proc/sys/net/ipv6/conf/" + name + "/disable_ipv6"
	if err := os.WriteFile(no6, []byte("1"), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("network: %w", err)
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("network: socket: %w", err)
	}
	defer unix.Close(s)
	guest, gateway := netip.MustParseAddr(frame.Guest).As4(), netip.MustParseAddr(frame.Gateway).As4()
	for _, step := range []struct {
		what    string
		request uint
		set     func(*unix.Ifreq) error
	}{
		{"address", unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(guest[:]) }},
		{"netmask", unix.SIOCSIFNETMASK, func(r *unix.Ifreq) error {
			return r.SetInet4Addr(net.CIDRMask(frame.PrefixBits,
				32))
		}},
		{"state", unix.SIOCSIFFLAGS, func(r *unix.Ifreq) error { r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING); return nil }},
	} {
		r, err := unix.NewIfreq(name)
		if err == nil {
			err = step.set(r)
		}
		if err == nil {
			err = unix.IoctlIfreq(s, step.request, r)
		}
		if err != nil {
			return fmt.Errorf("network: set %s of %s: %w", step.what, name, err)
		}
	}
	if err := addDefaultRoute(gateway); err != nil {
		return fmt.Errorf("network: route to %s: %w", frame.Gateway, err)
	}
	return nil
}

// addDefaultRoute does the same as "ip route add default via GATEWAY".
func addDefaultRoute(gateway [4]byte) error {
	n, err := openNetlink(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer n.close()
	p := make([]byte, unix.SizeofNlMsghdr, 64)
	// struct rtmsg: family, lengths of destination and source, TOS, table, protocol, scope, type,
	// flags.
	p = append(p, unix.AF_INET, 0, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_BOOT, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST,
		0, 0, 0, 0)
	p = binary.NativeEndian.AppendUint16(p, unix.SizeofRtAttr+uint16(len(gateway)))
	p = append(binary.NativeEndian.AppendUint16(p, unix.RTA_GATEWAY), gateway[:]...)
	return n.call(p, unix.RTM_NEWROUTE, unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_EXCL, func([]byte) {})
}
