package e2b

import (
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/volfiles"
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

// deadlines keeps the latest read deadline of a connection.
type deadlines struct {
	net.Conn
	mu sync.Mutex
	// +checklocks:mu
	latest time.Time
	// +checklocks:mu
	set int
}

func (d *deadlines) SetReadDeadline(at time.Time) error {
	d.mu.Lock()
	d.latest, d.set = at, d.set+1
	d.mu.Unlock()
	return d.Conn.SetReadDeadline(at)
}

func (d *deadlines) count() (set int, latest time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.set, d.latest
}

// When stop has returned, no goroutine reads the body or changes the deadline of the connection,
// because the connection then belongs to other requests.
func TestStopEndsReads(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	conn := &deadlines{Conn: here}
	body := newSteady(here, conn, 100, time.Now().Add(time.Hour))
	failed := make(chan error, 1)
	go func() {
		_, err := io.ReadAll(body)
		failed <- err
	}()
	if _, err := there.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if body.stop() {
		t.Error("the whole body was read")
	}
	select {
	case err := <-failed:
		if err == nil {
			t.Error("the reader has reached the end of the body")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("a read still waits")
	}
	before, latest := conn.count()
	if _, err := body.Read(make([]byte, 1)); !errors.Is(err, errStopped) || !latest.IsZero() {
		t.Errorf("afterwards: %v, with the deadline %v", err, latest)
	}
	if after, _ := conn.count(); after != before {
		t.Error("a read after stop has set a deadline")
	}
}

// After the last byte, no deadline is left: it would end the request, because the server then reads
// in the background.
func TestNoDeadlineAfterTheEnd(t *testing.T) {
	here, there := net.Pipe()
	conn := &deadlines{Conn: here}
	body := newSteady(here, conn, 3, time.Now().Add(time.Hour))
	go func() { _, _ = there.Write([]byte("abc")); there.Close() }()
	if p, err := io.ReadAll(body); err != nil || string(p) != "abc" {
		t.Fatalf("%q, %v", p, err)
	}
	if _, latest := conn.count(); !latest.IsZero() {
		t.Errorf("the deadline %v is left", latest)
	}
	if !body.stop() {
		t.Error("not the whole body was read")
	}
}

// slowClient is a ResponseWriter that records the deadlines of writes.
type slowClient struct {
	httptest.ResponseRecorder
	deadlines []time.Time
}

func (s *slowClient) SetWriteDeadline(at time.Time) error {
	s.deadlines = append(s.deadlines, at)
	return nil
}

// The content of a file may take longer than other answers: each part of it has a deadline of its
// own, instead of one for the whole answer.
func TestContentHasRollingDeadlines(t *testing.T) {
	a := &Server{Config: Config{Face: &face.Face{Config: face.Config{Limits: face.Limits{Stall: time.Hour}}}}}
	w := &slowClient{ResponseRecorder: *httptest.NewRecorder()}
	parts := io.MultiReader(strings.NewReader("a"), strings.NewReader("b"), strings.NewReader("c"))
	r := httptest.NewRequest("GET", "/volumecontent/vol-x/file?path=x", nil)
	if err := a.sendContent(w, r, volfiles.Answer{Status: 200, Length: 3, Body: parts, File: true}); err != nil {
		t.Fatal(err)
	}
	if w.Body.String() != "abc" || len(w.deadlines) != 3 || time.Until(w.deadlines[2]) < 50*time.Minute {
		t.Errorf("sent %q with deadlines %v", w.Body, w.deadlines)
	}
}
