package ctlsock

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func TestDescriptorsAreRefused(t *testing.T) {
	for name, kind := range map[string]int{"stream": unix.SOCK_STREAM, "packets": unix.SOCK_SEQPACKET} {
		pair, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer CloseAll(pair[:])
		if err := RefuseDescriptors(pair[0]); err != nil {
			t.Fatal(err)
		}
		err = unix.Sendmsg(pair[1], []byte{1}, unix.UnixRights(pair[0]), nil, 0)
		if _, getErr := unix.GetsockoptInt(pair[0], unix.SOL_SOCKET, passRights); errors.Is(getErr, unix.ENOPROTOOPT) {
			t.Logf("%s: this kernel cannot refuse descriptors", name)
		} else if !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: sending a descriptor: %v, want EPERM", name, err)
		}
		if err := unix.Sendmsg(pair[1], []byte{1}, nil, nil, 0); err != nil {
			t.Errorf("%s: sending a byte: %v", name, err)
		}
	}
}
