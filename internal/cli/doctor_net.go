package cli

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"golang.org/x/sys/unix"
)

// enoughDescriptors is what a hundred sandboxes with forty connections each need.
const enoughDescriptors = 4096

// checkNetwork looks at what sandboxes need of the host to reach the outside: sockets of an
// ordinary user, and nothing else.
func checkNetwork() finding {
	const check = "network of sandboxes"
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return found(check, fail, err.Error())
	}
	return networkFinding(check, canConnect(), hostFile("/etc/resolv.conf"), files.Max)
}

// canConnect makes a socket towards the internet and sends nothing.
func canConnect() error {
	conn, err := net.Dial("udp4", "192.88.99.1:9") // an address that nobody has any more (RFC 7526)
	if err != nil {
		return err
	}
	return conn.Close()
}

// networkFinding judges what was found.
func networkFinding(check string, unreachable error, resolvConf string, descriptors uint64) finding {
	switch {
	case errors.Is(unreachable, unix.EPERM), errors.Is(unreachable, unix.EACCES):
		return found(check, warn, "this host lets its users make no outgoing connections: "+unreachable.Error())
	case unreachable != nil:
		return found(check, warn, "the host has no way to the internet, and so have sandboxes none: "+unreachable.Error())
	case !strings.Contains(resolvConf, "nameserver"):
		return found(check, warn, "/etc/resolv.conf names no server: sandboxes can look up no name").
			byHand("forkd daemon --resolver ADDRESS")
	case descriptors < enoughDescriptors:
		return found(check, warn, fmt.Sprintf("%d file descriptors: each connection of a sandbox takes one", descriptors)).
			byHand("ulimit -n 1048576 # systemd: LimitNOFILE=")
	}
	return found(check, pass,
		fmt.Sprintf("outgoing sockets, which is all that is needed: no nftables, iptables, ip_forward, "+
			"tap devices or namespaces; up to %d connections at a time", descriptors/4*3))
}
