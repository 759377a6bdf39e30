package vmmclient_test

import (
	"encoding/binary"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/vmtest"
)

// The agent sets up the guest's network. If a connection is open when a guest is saved, the
// connection continues in the source. In a forked sandbox the connection ends immediately, even if
// a process of the guest is blocked in a read, and even if the sandbox's network has no peer.
func TestConnectionsEndInAChild(t *testing.T) {
	a := vmtest.Load(t)
	shape := vm.Shape{MemoryBytes: 256 * mib, VCPUs: 1, Template: vmtest.Template()}
	parent := boot(t, a, a.Cloud.VMLinux, a.Cloud.Initrd, "base", shape)
	if got := parent.sh(t, "cat /etc/resolv.conf"); !strings.Contains(got, "nameserver "+frame.Gateway) {
		t.Errorf("resolv.conf: %s", got)
	}
	if got := parent.sh(t, "cat /proc/net/route"); !strings.Contains(got, "eth0\t00000000\t010200C0") {
		t.Errorf("routes: %s", got)
	}
	if got := parent.sh(t, "cat /sys/class/net/eth0/statistics/tx_packets"); got != "0" {
		t.Errorf("an idle guest has sent %s packets", got)
	}
	ours, err := parent.DialFrames()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	fd, err := unix.FcntlInt(ours.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	// os.NewFile adds this descriptor to the runtime's poller. The file that DialFrames has returned
	// is not in the poller.
	polled := os.NewFile(uintptr(fd), "frame socket")
	t.Cleanup(func() { polled.Close() })
	go (&gateway{polled}).serve()
	if err := parent.SetNet(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	parent.sh(t, `setsid bash -c 'exec 3<>/dev/tcp/192.0.2.1/80 && echo open >/run/state; read -u 3; echo end >/run/state' \
		</dev/null >/run/log 2>&1 &
		until [ -e /run/state ]; do sleep 0.1; done`)
	s := save(t, parent, shape)
	child := fork(t, a, s, "child")
	t.Log(child.sh(t, "until grep end /run/state; do sleep 0.1; done; cat /run/log"))
	if err := child.Pause(t.Context()); err != nil { // a running child would take CPU time from the source
		t.Fatal(err)
	}
	if err := parent.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := parent.sh(t, "cat /run/state"); got != "open" {
		t.Errorf("the connection of the source: %s", got)
	}
}

// gateway answers ARP requests, and accepts every TCP connection.
type gateway struct{ *os.File }

func (g *gateway) serve() {
	p := make([]byte, frame.MaxMessage)
	for {
		n, err := g.Read(p)
		if err != nil || n == 0 {
			return
		}
		var answer []byte
		f, be := p[frame.HeaderBytes:n], binary.BigEndian
		switch {
		case be.Uint16(f[12:]) == 0x0806: // an ARP request for 192.0.2.1
			answer = append(append([]byte(nil), f[14:20]...), 0, 2)
			answer = append(append(append(answer, frame.GatewayMAC[:]...), f[38:42]...), f[22:32]...)
		case be.Uint16(f[12:]) == 0x0800 && f[14] == 0x45 && f[23] == 6 && f[47]&0x3f == 2: // a SYN
			answer = synAck(f[14:])
		default:
			continue
		}
		head := append(make([]byte, frame.HeaderBytes), f[6:12]...)
		head = append(append(head, frame.GatewayMAC[:]...), f[12:14]...)
		if _, err := g.Write(append(head, answer...)); err != nil {
			return
		}
	}
}

// synAck returns the answer to an IPv4 packet with a TCP SYN.
func synAck(syn []byte) []byte {
	be := binary.BigEndian
	p := make([]byte, 40)
	p[0], p[8], p[9] = 0x45, 64, 6
	be.PutUint16(p[2:], uint16(len(p)))
	copy(p[12:], syn[16:20])
	copy(p[16:], syn[12:16])
	be.PutUint16(p[10:], sum(p[:20], 0))
	tcp := p[20:]
	copy(tcp[0:], syn[22:24])
	copy(tcp[2:], syn[20:22])
	be.PutUint32(tcp[8:], be.Uint32(syn[24:])+1)
	tcp[12], tcp[13] = 5<<4, 0x12 // SYN, ACK
	be.PutUint16(tcp[14:], 65535)
	be.PutUint16(tcp[16:], sum(p[12:], 6+uint32(len(tcp)))) // the checksum includes the pseudo header
	return p
}

// sum returns the internet checksum (RFC 1071) of p. It continues the given sum.
func sum(p []byte, carry uint32) uint16 {
	for ; len(p) >= 2; p = p[2:] {
		carry += uint32(binary.BigEndian.Uint16(p))
	}
	for carry>>16 != 0 {
		carry = carry>>16 + carry&0xffff
	}
	return ^uint16(carry)
}
