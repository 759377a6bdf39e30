package feeder

import (
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// lie answers FUSE requests of the kernel as a server under an attacker's control: the file has the
// given mode and size, and a link leads to target.
func lie(requests *os.File, mode uint32, size uint64, target string) {
	order, buf := binary.NativeEndian, make([]byte, 16<<10)
	u32 := func(list ...uint32) (p []byte) {
		for _, v := range list {
			p = order.AppendUint32(p, v)
		}
		return p
	}
	attr := func(node, size uint64, mode uint32) []byte {
		p := order.AppendUint64(order.AppendUint64(nil, node), size)
		p = append(p, make([]byte, 4*8)...)
		return append(p, u32(0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)...)
	}
	for {
		n, err := unix.Read(int(requests.Fd()), buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n < 40 {
			return
		}
		op, unique := order.Uint32(buf[4:]), order.Uint64(buf[8:])
		var body []byte
		status := int32(0)
		switch op {
		case 26: // init
			body = append(u32(7, 31, 0, 0, 0, 4096, 1, 32), make([]byte, 8*4)...)
		case 1: // lookup
			body = append(u32(2, 0, 0, 0, 1<<30, 0, 1<<30, 0, 0, 0), attr(2, size, mode)...)
		case 3: // getattr
			body = append(u32(1<<30, 0, 0, 0), attr(2, size, mode)...)
		case 5: // readlink
			body = []byte(target)
		case 14: // open
			body = make([]byte, 16)
		default:
			status = -int32(unix.ENOSYS)
		}
		p := u32(uint32(16+len(body)), uint32(status))
		p = append(order.AppendUint64(p, unique), body...)
		_, _ = unix.Write(int(requests.Fd()), p)
	}
}

// A forkd-feed process under an attacker's control cannot make the daemon open a file of the host,
// wait, or accept a file of a wrong length.
func TestServersThatLie(t *testing.T) {
	secret := t.TempDir() + "/secret"
	if err := os.WriteFile(secret, make([]byte, 100), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		mode uint32
		size uint64
		ok   bool
	}{
		"a file":       {unix.S_IFREG | 0o444, 100, true},
		"a link":       {unix.S_IFLNK | 0o777, 100, false},
		"a FIFO":       {unix.S_IFIFO | 0o444, 100, false},
		"a directory":  {unix.S_IFDIR | 0o555, 100, false},
		"a short file": {unix.S_IFREG | 0o444, 99, false},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := mount()
			if err != nil {
				t.Skip(err)
			}
			defer m.close()
			go lie(m.requests, c.mode, c.size, secret)
			f, err := m.open(0, 100)
			if (err == nil) != c.ok {
				t.Errorf("the daemon opens it: %v", err)
			}
			if f != nil {
				if path, err := os.Readlink("/proc/self/fd/" + itoa(int(f.Fd()))); err != nil || strings.Contains(path, "secret") {
					t.Errorf("the daemon has opened %s: %v", path, err)
				}
				f.Close()
			}
		})
	}
}
