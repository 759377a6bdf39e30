package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/frame"
)

// insideEnv is set if this process runs in its own network namespace.
const insideEnv = "FORKD_BENCH_NET"

// Addresses in the namespace that stands for the host. Clients reach the host's loopback at other
// addresses: with pasta, at the address of the gateway, and with slirp4netns, at a special address.
const (
	hostAddress  = "10.77.0.1"
	hostGateway  = "10.77.0.254"
	slirpAddress = "10.0.2.2"
)

// enterNamespace runs this program again in a network namespace of its own. It returns the exit
// code of the second process, and true. If it is called in the second process, it does nothing and
// returns false.
func enterNamespace() (code int, again bool) {
	if os.Getenv(insideEnv) != "" {
		return 0, false
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.SysProcAttr = namespace()
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), true
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "net: no network namespace: %v\n", err)
		return 1, true
	}
	return 0, true
}

// namespace returns attributes for a process with a new network namespace and a new user namespace,
// in which the process is root. pasta should not run as root of the host.
func namespace() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWUSER, Pdeathsig: syscall.SIGKILL,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}
}

// makeWorld sets up the loopback interface of this namespace. It also adds an interface without a
// connection, because pasta copies the addresses and routes of an interface.
func makeWorld(ctx context.Context) error {
	return ip(ctx, "link set lo up", "link add host0 type veth peer name host1", "link set host1 up",
		"addr add "+hostAddress+"/24 dev host0", "link set host0 up", "route add default via "+hostGateway)
}

// ip runs the program ip once for each of the argument lists.
func ip(ctx context.Context, calls ...string) error {
	for _, args := range calls {
		if out, err := exec.CommandContext(ctx, "ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w\n%s", args, err, out)
		}
	}
	return nil
}

// frameFD is the number of the frame socket's descriptor in a client.
const frameFD = 3

// joinTap adds an interface like the interface of a VM to the client's namespace, and forwards
// frames between this interface and the frame socket. On the interface and on the socket, the same
// header precedes a frame.
func joinTap() error {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("open /dev/net/tun: %w", err)
	}
	r, err := unix.NewIfreq("eth0")
	if err != nil {
		return err
	}
	r.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := errors.Join(
		unix.IoctlIfreq(fd, unix.TUNSETIFF, r),
		unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, frame.HeaderBytes),
		unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4),
		unix.SetNonblock(frameFD, true),
		os.WriteFile("/proc/sys/net/ipv6/conf/eth0/disable_ipv6", []byte("1"), 0),
	); err != nil {
		return fmt.Errorf("make a tap device: %w", err)
	}
	tap, socket := os.NewFile(uintptr(fd), "tap"), os.NewFile(frameFD, "frame socket")
	go carry(tap, socket)
	go carry(socket, tap)
	mac := frame.GuestMAC
	return ip(context.Background(), fmt.Sprintf("link set eth0 address %02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1],
		mac[2], mac[3], mac[4], mac[5]),
		fmt.Sprintf("link set eth0 mtu %d up", frame.MTU), fmt.Sprintf("addr add %s/%d dev eth0", frame.Guest,
			frame.PrefixBits),
		"route add default via "+frame.Gateway)
}

// carry copies messages until one of the files is closed.
func carry(from, to *os.File) {
	p := make([]byte, frame.MaxMessage)
	for {
		n, err := from.Read(p)
		if err != nil {
			return
		}
		// EINVAL: the tap device rejects this frame.
		if _, err := to.Write(p[:n]); err != nil && !errors.Is(err, unix.EINVAL) {
			return
		}
	}
}
