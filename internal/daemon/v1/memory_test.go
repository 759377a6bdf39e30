package v1

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http/httptest"
	"testing"

	"github.com/forkd/forkd/internal/daemon/auth"
)

// What requests hold is counted beyond what is small, and given back when they end.
func TestMemory(t *testing.T) {
	m := newMemory(1000)
	request := func() (*share, func()) {
		r, done := m.sharing(httptest.NewRequest("POST", "/", nil))
		return shareOf(r), done
	}
	small, smallDone := request()
	large, largeDone := request()
	if err := errors.Join(small.take(smallShare), large.take(smallShare), large.take(900)); err != nil || m.held != 900 {
		t.Fatalf("%d bytes are held, %v", m.held, err)
	}
	if err := small.keep(26); !errors.Is(err, errNoMemory) || m.held != 900 {
		t.Errorf("more than there is: %v, %d bytes are held", err, m.held)
	}
	if err := small.keep(25); err != nil || m.held != 1000 {
		t.Errorf("all that there is: %v, %d bytes are held", err, m.held)
	}
	other, otherDone := request()
	if n, err := io.Copy(io.Discard, other.body(bytes.NewReader(make([]byte, smallShare/copiesOfBody)))); err != nil ||
		n == 0 {
		t.Errorf("a small body beside large ones: %v", err)
	}
	if _, err := io.ReadAll(other.body(bytes.NewReader([]byte("x")))); !errors.Is(err, errNoMemory) {
		t.Errorf("a body that is no longer small: %v", err)
	}
	for _, done := range []func(){smallDone, largeDone, otherDone} {
		done()
	}
	if m.held != 0 || len(m.by) != 0 {
		t.Errorf("%d bytes are held in the end, by %v", m.held, m.by)
	}
	if err := shareOf(httptest.NewRequest("POST", "/", nil).WithContext(context.Background())).take(1 << 40); err != nil {
		t.Errorf("of a request that has no share: %v", err)
	}
}

// One client holds all that it may, and the bodies of another are read.
func TestMemoryOfOneClientLeavesSomeForAnother(t *testing.T) {
	m := newMemory(1000)
	requestOf := func(name string) *share {
		r := httptest.NewRequest("POST", "/", nil)
		r, done := m.sharing(r.WithContext(auth.With(r.Context(), auth.Principal{Who: name})))
		t.Cleanup(done)
		return shareOf(r)
	}
	first, second, other := requestOf("token:a"), requestOf("token:a"), requestOf("token:b")
	if err := errors.Join(first.take(smallShare+500), second.take(smallShare+250)); err != nil {
		t.Fatalf("three quarters for one client: %v", err)
	}
	if err := second.take(1); !errors.Is(err, errNoMemory) {
		t.Errorf("more for the same client: %v", err)
	}
	if err := other.take(smallShare + 250); err != nil {
		t.Errorf("the last quarter for another client: %v", err)
	}
	first.release()
	if err := second.take(500); err != nil {
		t.Errorf("what the client has given back: %v", err)
	}
}
