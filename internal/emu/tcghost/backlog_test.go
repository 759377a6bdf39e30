package tcghost

import (
	"context"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

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
	if info.Sacked <= 1 { // for a listening socket, Sacked is the length of its queue
		t.Errorf("the queue has %d places", info.Sacked)
	}
	if err := deepen(os.Getpid(), addr, "127.0.0.1:1"); err == nil {
		t.Error("nobody listens at 127.0.0.1:1, and there is no error")
	}
}

// Only a process that itself listens at all addresses gets the token.
func TestListens(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	other := exec.Command("sleep", "60")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	own := []string{l.Addr().String()}
	for _, c := range []struct {
		pid   int
		addrs []string
		want  bool
	}{
		{os.Getpid(), own, true},
		{other.Process.Pid, own, false},
		{os.Getpid(), append(own, "127.0.0.1:1"), false},
		{1 << 30, own, false},
	} {
		if got := listens(c.pid, c.addrs); got != c.want {
			t.Errorf("process %d, %q: %v", c.pid, c.addrs, got)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*listenEvery)
	defer cancel()
	if awaitListen(ctx, other.Process.Pid, own) {
		t.Error("a process that does not listen was accepted")
	}
}

// While another process has QEMU's port, the supervisor sends nothing to that process.
func TestTokenGoesOnlyToQEMU(t *testing.T) {
	stranger, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	asked := make(chan struct{}, 1)
	go func() {
		if conn, err := stranger.Accept(); err == nil {
			conn.Close()
			asked <- struct{}{}
		}
	}()
	qemu := exec.Command("sleep", "1")
	if err := qemu.Start(); err != nil {
		t.Fatal(err)
	}
	s := &supervisor{m: Machine{Name: "test", dir: t.TempDir()}, token: "secret", options: Options{HangLimit: time.Minute}}
	s.state.InitAddr, s.state.DaemonAddr = stranger.Addr().String(), stranger.Addr().String()
	if answered, err := s.watch(t.Context(), qemu); answered || err == nil {
		t.Errorf("%v, %v", answered, err)
	}
	select {
	case <-asked:
		t.Error("the stranger got a connection")
	default:
	}
}
