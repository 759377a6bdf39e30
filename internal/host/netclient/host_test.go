package netclient

import (
	"net/netip"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/netproto"
)

func TestParseResolvConf(t *testing.T) {
	text := "# comment\nsearch a.b\nnameserver 127.0.0.53\nnameserver\nnameserver x\n nameserver fe80::1%eth0 # y\n" +
		"nameserver 1.1.1.1\nnameserver 8.8.8.8\n" + strings.Repeat("x", 100<<10)
	want := []netip.AddrPort{netip.MustParseAddrPort("127.0.0.53:53"), netip.MustParseAddrPort("[fe80::1%eth0]:53"),
		netip.MustParseAddrPort("1.1.1.1:53")}
	if got := parseResolvConf([]byte(text)); !reflect.DeepEqual(got, want) {
		t.Errorf("%v", got)
	}
	if got := parseResolvConf(nil); got != nil {
		t.Errorf("%v", got)
	}
}

// Config.Own contains the addresses of the host. Configured resolvers replace the host's resolvers.
func TestHostConfig(t *testing.T) {
	own := hostConfig(nil, Proxy{}, netproto.Config{}).Own
	if !reflect.DeepEqual(hostConfig([]netip.AddrPort{netip.MustParseAddrPort("9.9.9.9:53")}, Proxy{},
		netproto.Config{}).Resolvers,
		[]netip.AddrPort{netip.MustParseAddrPort("9.9.9.9:53")}) {
		t.Error("a resolver that was given is not used")
	}
	for _, a := range own {
		if a == netip.MustParseAddr("127.0.0.1") {
			return
		}
	}
	t.Errorf("127.0.0.1 is not among %v", own)
}

// The client notices that the host has another address. In this test, the network namespace of the
// test's thread stands for the host.
func TestAddressChanges(t *testing.T) {
	runtime.LockOSThread() // never unlocked, so that the thread and its namespace end with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		t.Skipf("no network namespace can be made: %v", err)
	}
	changed, err := addressChanges(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		t.Fatal(err)
	}
	lo.SetUint16(unix.IFF_UP) // bringing lo up adds 127.0.0.1
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		t.Fatal(err)
	}
	select {
	case <-changed:
	case <-time.After(patience):
		t.Error("the new address was not noticed")
	}
}
