package nettest

import (
	"bytes"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Far makes an address of the world reachable only over a link with a delay in each direction. The
// link has two TUN devices, and this process copies packets between them.
func (w *World) Far(t testing.TB, addr string, delay time.Duration) {
	t.Helper()
	here := openTUN(t, "far0")
	IP(t, "addr add "+Own+"/32 dev far0")
	IP(t, "link set far0 up txqueuelen 100000")
	IP(t, "route add "+addr+"/32 dev far0")
	var there *os.File
	w.Do(func() {
		there = openTUN(t, "far1")
		IP(t, "addr add "+addr+"/32 dev far1")
		IP(t, "link set far1 up txqueuelen 100000")
		IP(t, "route add "+Own+"/32 dev far1")
	})
	go carry(there, here, delay)
	go carry(here, there, delay)
	t.Cleanup(func() {
		_ = here.Close()
		_ = there.Close()
	})
}

func openTUN(t testing.TB, name string) *os.File {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Skipf("a TUN device: %v", err)
	}
	f := os.NewFile(uintptr(fd), name)
	r, err := unix.NewIfreq(name)
	if err != nil {
		t.Fatal(err)
	}
	r.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, r); err != nil {
		_ = f.Close()
		t.Skipf("a TUN device: %v", err)
	}
	// Return a new file for the same device, because the runtime's poller can use the device only
	// after the call above.
	defer f.Close()
	again, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(again), name)
}

// carry copies packets from one device to another device, each after the delay.
func carry(to, from *os.File, delay time.Duration) {
	type packet struct {
		due   time.Time
		bytes []byte
	}
	line := make(chan packet, 1<<16)
	go func() {
		for p := range line {
			time.Sleep(time.Until(p.due))
			if _, err := to.Write(p.bytes); err != nil {
				return
			}
		}
	}()
	defer close(line)
	for buf := make([]byte, 64<<10); ; {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		select {
		case line <- packet{time.Now().Add(delay), bytes.Clone(buf[:n])}:
		default: // the link is full, and loses the packet
		}
	}
}
