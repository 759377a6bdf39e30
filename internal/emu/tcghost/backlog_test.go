package tcghost

import (
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// The queue of a listening socket grows. If no socket listens at an address, the error names the
// address.
func TestDeepen(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 1); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: name.(*unix.SockaddrInet4).Port}).String()
	if err := deepen(os.Getpid(), addr); err != nil {
		t.Fatal(err)
	}
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		t.Fatal(err)
	}
	if info.Sacked <= 1 { // for a listening socket, the length of its queue
		t.Errorf("the queue has %d places", info.Sacked)
	}
	if err := deepen(os.Getpid(), addr, "127.0.0.1:1"); err == nil {
		t.Error("nobody listens at 127.0.0.1:1, and there is no error")
	}
}
