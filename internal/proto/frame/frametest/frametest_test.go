package frametest

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/frame"
)

// A message of the maximum length is received as a whole, in both directions. A full socket refuses
// messages instead of blocking.
func TestPairCarriesTheLongestMessage(t *testing.T) {
	a, b, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	defer b.Close()
	long := bytes.Repeat([]byte{7}, frame.MaxMessage)
	fdA, fdB := int(a.Fd()), int(b.Fd())
	for _, way := range [][2]int{{fdA, fdB}, {fdB, fdA}} {
		if _, err := unix.Write(way[0], long); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, frame.MaxMessage+1)
		if n, err := unix.Read(way[1], got); err != nil || !bytes.Equal(got[:n], long) {
			t.Fatalf("read %d bytes, %v", n, err)
		}
	}
	for range 1000 {
		if _, err := unix.Write(fdA, long); err != nil {
			if err != unix.EAGAIN {
				t.Fatal(err)
			}
			return
		}
	}
	t.Error("1000 unread messages fit into the socket")
}
