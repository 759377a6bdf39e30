package e2b

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// A client that sends very slowly loses its place after the stall limit, long before the limit for
// a whole archive.
func TestDrips(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	go func() {
		defer there.Close()
		for {
			if _, err := there.Write([]byte{1}); err != nil {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	drips := &steady{body: here, rc: here, end: time.Now().Add(time.Hour), stall: 100 * time.Millisecond, least: 1 << 20}
	if n, err := io.Copy(io.Discard, drips); !errors.Is(err, os.ErrDeadlineExceeded) || n >= 1<<20 {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// An upload at the minimum pace may take longer than the stall limit, but not longer than the limit
// for a whole archive.
func TestSteady(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	go func() {
		defer there.Close()
		for range 20 {
			if _, err := there.Write(make([]byte, 100)); err != nil {
				return
			}
		}
	}()
	body := &steady{body: here, rc: here, end: time.Now().Add(time.Hour), stall: time.Minute, least: 100}
	for range 10 {
		if _, err := io.ReadFull(body, make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		if body.left > time.Nanosecond {
			body.left = time.Nanosecond // as if the time for these 100 bytes had passed
		}
	}
	body.end = time.Now()
	if _, err := body.Read(make([]byte, 100)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("beyond the end: %v", err)
	}
}

// A client that announces a larger size must send more bytes in the same time.
func TestPromise(t *testing.T) {
	for _, c := range []struct {
		size int64
		want error
	}{{uploadPart * 100 << 10, os.ErrDeadlineExceeded}, {1 << 20, nil}} {
		here, there := net.Pipe()
		go func() {
			defer there.Close()
			for range 2 {
				if _, err := there.Write(make([]byte, uploadLeast)); err != nil {
					return
				}
			}
		}()
		body := newSteady(here, here, c.size, time.Now().Add(time.Hour))
		if _, err := io.ReadFull(body, make([]byte, uploadLeast)); err != nil {
			t.Fatal(err)
		}
		body.left = time.Nanosecond // as if the time for these bytes had passed
		if _, err := body.Read(make([]byte, 1)); !errors.Is(err, c.want) {
			t.Errorf("an archive of %d bytes: %v, want %v", c.size, err, c.want)
		}
		here.Close()
	}
}
