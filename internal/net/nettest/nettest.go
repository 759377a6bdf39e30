// Package nettest builds a small internet for tests. This internet is a network namespace in which
// the test's servers have public, private and metadata addresses. A pair of virtual devices
// connects it to the namespace of the test.
//
// The internet is not connected to the computer's network. The package needs root, or a kernel that
// permits user namespaces. It also needs the program ip. Without these, tests are skipped.
package nettest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// insideEnv is the environment variable that is set in the child process that runs the tests. If
// the child has no namespace of its own, the value says why; otherwise it is empty.
const insideEnv = "FORKD_NETTEST"

// Own is the address of the test's own namespace, which stands for the host.
const Own = "10.77.0.1"

// Run runs the tests of a package in a network namespace. TestMain must call it, and pass the
// result to os.Exit.
func Run(m *testing.M) int {
	if _, inside := os.LookupEnv(insideEnv); inside {
		return m.Run()
	}
	if slices.ContainsFunc(os.Args, func(a string) bool { return strings.HasPrefix(a, "-test.fuzz") }) {
		_ = os.Setenv(insideEnv, "no network namespace: the fuzzer speaks to its processes over descriptors")
		return m.Run()
	}
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	runtime.LockOSThread() // the kernel signals the child when the thread that started it exits
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), insideEnv+"=")
	cmd.SysProcAttr = attr
	err := cmd.Start()
	if err == nil {
		err = cmd.Wait()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			return exit.ExitCode()
		}
		if err == nil {
			return 0
		}
	}
	_ = os.Setenv(insideEnv, fmt.Sprintf("no network namespace: %v", err))
	return m.Run()
}

// World is the internet of a test.
type World struct {
	calls chan func()
}

// New makes a world whose servers have the given addresses. In the test's namespace, all addresses
// except Own are routed to the world.
func New(t testing.TB, addrs ...string) *World {
	t.Helper()
	if why := os.Getenv(insideEnv); why != "" {
		t.Skip(why)
	}
	if ipProgram() == "" {
		t.Skip("no program ip: install iproute2")
	}
	w := &World{calls: make(chan func())}
	tid := make(chan int)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread exits with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
		}
		tid <- unix.Gettid()
		for f := range w.calls {
			f()
		}
	}()
	IP(t, "link add w0 type veth peer name w1")
	IP(t, "link set w1 netns "+strconv.Itoa(<-tid))
	IP(t, "link set lo up")
	IP(t, "addr add "+Own+"/32 dev w0")
	IP(t, "link set w0 up")
	IP(t, "route add default dev w0")
	w.Do(func() {
		IP(t, "link set lo up")
		IP(t, "link set w1 up")
		for _, a := range addrs {
			IP(t, "addr add "+a+"/32 dev w1")
		}
		IP(t, "route add default dev w1")
	})
	t.Cleanup(func() {
		IP(t, "link del w0")
		close(w.calls)
	})
	return w
}

// ipProgram returns the path of the program ip, or "". It also looks in directories that are often
// missing in the PATH of users other than root.
func ipProgram() string {
	for _, name := range []string{"ip", "/usr/sbin/ip", "/sbin/ip"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// IP runs the program ip in the test's namespace. Devices that the program adds are removed with
// the world, or when the process exits.
func IP(t testing.TB, args string) {
	t.Helper()
	if out, err := exec.Command(ipProgram(), strings.Fields(args)...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v\n%s", args, err, out)
	}
}

// Do runs f in the world's namespace. Sockets that f opens stay in that namespace.
func (w *World) Do(f func()) {
	done := make(chan struct{})
	w.calls <- func() {
		defer close(done)
		f()
	}
	<-done
}

// Listen returns a TCP listener in the world. The listener is closed when the test ends.
func (w *World) Listen(t testing.TB, addr string) net.Listener {
	t.Helper()
	var l net.Listener
	var err error
	w.Do(func() { l, err = net.Listen("tcp4", addr) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// ListenUDP returns a UDP socket in the world. The socket is closed when the test ends.
func (w *World) ListenUDP(t testing.TB, addr string) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	var err error
	w.Do(func() { c, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addr))) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Serve accepts connections, and calls serve(conn) for each of them in a new goroutine.
func Serve(l net.Listener, serve func(net.Conn)) {
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
}
