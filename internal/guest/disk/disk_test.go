package disk

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// fake records the requests to a file system.
type fake struct {
	calls []uint
	fails map[uint]error
}

func (f *fake) call(request uint, arg *[3]uint64) error {
	if (arg != nil) != (request == fiTrim) {
		return errors.New("wrong argument")
	}
	f.calls = append(f.calls, request)
	return f.fails[request]
}

func newFake(fails map[uint]error) (*Disk, *fake) {
	f := &fake{fails: fails}
	return &Disk{call: f.call, limit: Limit}, f
}

func TestRestAndWake(t *testing.T) {
	for _, fails := range []map[uint]error{nil, {fiTrim: unix.EOPNOTSUPP}} {
		d, f := newFake(fails)
		for range 2 {
			if err := d.Rest(); err != nil {
				t.Fatal(err)
			}
			if d.Rest() == nil {
				t.Error("a file system that rests was brought to rest")
			}
			if err := d.Wake(); err != nil {
				t.Fatal(err)
			}
		}
		if d.Wake() == nil {
			t.Error("a file system that does not rest was woken")
		}
		if want := []uint{fiTrim, fiFreeze, fiThaw, fiTrim, fiFreeze, fiThaw}; !slices.Equal(f.calls, want) {
			t.Errorf("requests %x", f.calls)
		}
	}
}

// A file system at rest wakes after Limit if the host does not wake it. If the host then calls
// Wake, Wake returns an error.
func TestTheRestEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, f := newFake(nil)
		if err := d.Rest(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(Limit + time.Second)
		if !slices.Contains(f.calls, fiThaw) {
			t.Error("it is still frozen")
		}
		if d.Wake() == nil {
			t.Error("nothing was said of the end")
		}
		if err := d.Rest(); err != nil {
			t.Error(err)
		}
		if err := d.Wake(); err != nil {
			t.Error(err)
		}
	})
}

// Hold delays a Rest, and waits for the end of an earlier Rest. A goroutine that waits for a mutex
// stops the time of synctest, so this test uses the real time.
func TestHold(t *testing.T) {
	d, f := newFake(nil)
	d.limit = 200 * time.Millisecond
	release, err := d.Hold()
	if err != nil {
		t.Fatal(err)
	}
	rested := make(chan error, 1)
	go func() { rested <- d.Rest() }()
	time.Sleep(20 * time.Millisecond)
	if len(f.calls) != 0 {
		t.Errorf("requests %x during a hold", f.calls)
	}
	release()
	if err := <-rested; err != nil {
		t.Fatal(err)
	}
	release, err = d.Hold() // waits until the file system wakes by itself
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if d.resting != nil {
		t.Error("a hold during a rest")
	}
}

func TestFailures(t *testing.T) {
	for _, request := range []uint{fiTrim, fiFreeze} {
		d, _ := newFake(map[uint]error{request: unix.EIO})
		if err := d.Rest(); !errors.Is(err, unix.EIO) {
			t.Errorf("%x: %v", request, err)
		}
		if d.Wake() == nil {
			t.Errorf("%x: it rests", request)
		}
	}
	if err := New(t.TempDir() + "/missing").Rest(); err == nil {
		t.Error("a missing file system rests")
	}
}
