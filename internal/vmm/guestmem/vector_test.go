package guestmem

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func TestVector(t *testing.T) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ends[1])
	mem, err := New(PageSize)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	if err := mem.WriteAt([]byte("abcdefgh"), 0); err != nil {
		t.Fatal(err)
	}
	var v Vector
	fill := func(at GPA, lengths ...int) {
		t.Helper()
		v.Reset()
		for _, n := range lengths {
			p, err := mem.WriteView(at, n)
			if err != nil {
				t.Fatal(err)
			}
			v.Add(p)
			at += GPA(n)
		}
	}
	fill(0, 1, 0, 3, 4)
	if v.Len() != 3 {
		t.Errorf("%d parts", v.Len())
	}
	if err := v.Send(ends[0]); err != nil {
		t.Fatal(err)
	}
	fill(100, 5)
	if n, err := v.Receive(ends[1], unix.MSG_PEEK|unix.MSG_TRUNC); n != 8 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	fill(200, 2, 6)
	if n, err := v.Receive(ends[1], 0); n != 8 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	var got [8]byte
	for at, want := range map[GPA]string{100: "abcde\x00\x00\x00", 200: "abcdefgh"} {
		if err := mem.ReadAt(got[:], at); err != nil || string(got[:]) != want {
			t.Errorf("at %d: %q, %v", at, got, err)
		}
	}
	if _, err := v.Receive(ends[1], unix.MSG_DONTWAIT); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("of an empty socket: %v", err)
	}
	if err := unix.Close(ends[0]); err != nil {
		t.Fatal(err)
	}
	if n, err := v.Receive(ends[1], 0); n != 0 || err != nil {
		t.Errorf("at the end of the stream: %d bytes, %v", n, err)
	}
}
