package face

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http/httptest"
	"testing"

	"github.com/forkd/forkd/internal/daemon/auth"
)

// Bytes of a request beyond smallShare are counted, and are released when the request ends.
func TestMemory(t *testing.T) {
	m := newMemory(1000)
	held := func() int {
		n, _ := m.bytes.Count()
		return n
	}
	request := func() (*Share, func()) {
		r, done := m.Sharing(httptest.NewRequest("POST", "/", nil))
		return ShareOf(r), done
	}
	small, smallDone := request()
	large, largeDone := request()
	if err := errors.Join(small.Take(smallShare), large.Take(smallShare), large.Take(900)); err != nil || held() != 900 {
		t.Fatalf("%d bytes are held, %v", held(), err)
	}
	if err := small.Keep(26); !errors.Is(err, ErrNoMemory) || held() != 900 {
		t.Errorf("more than there is: %v, %d bytes are held", err, held())
	}
	if err := small.Keep(25); err != nil || held() != 1000 {
		t.Errorf("all that there is: %v, %d bytes are held", err, held())
	}
	other, otherDone := request()
	if n, err := io.Copy(io.Discard, other.Body(bytes.NewReader(make([]byte, smallShare/copiesOfBody)))); err != nil ||
		n == 0 {
		t.Errorf("a small body beside large ones: %v", err)
	}
	if _, err := io.ReadAll(other.Body(bytes.NewReader([]byte("x")))); !errors.Is(err, ErrNoMemory) {
		t.Errorf("a body that is no longer small: %v", err)
	}
	for _, done := range []func(){smallDone, largeDone, otherDone} {
		done()
	}
	if held() != 0 {
		t.Errorf("%d bytes are held in the end", held())
	}
	if err := ShareOf(httptest.NewRequest("POST", "/", nil).WithContext(context.Background())).Take(1 << 40); err != nil {
		t.Errorf("of a request that has no share: %v", err)
	}
}

// If one client holds all the memory that it is allowed to hold, bodies of other clients can still
// be read.
func TestMemoryOfOneClientLeavesSomeForAnother(t *testing.T) {
	m := newMemory(1000)
	requestOf := func(name string) *Share {
		r := httptest.NewRequest("POST", "/", nil)
		r, done := m.Sharing(r.WithContext(auth.With(r.Context(), auth.Principal{Who: name})))
		t.Cleanup(done)
		return ShareOf(r)
	}
	first, second, other := requestOf("token:a"), requestOf("token:a"), requestOf("token:b")
	if err := errors.Join(first.Take(smallShare+500), second.Take(smallShare+250)); err != nil {
		t.Fatalf("three quarters for one client: %v", err)
	}
	if err := second.Take(1); !errors.Is(err, ErrNoMemory) {
		t.Errorf("more for the same client: %v", err)
	}
	if err := other.Take(smallShare + 250); err != nil {
		t.Errorf("the last quarter for another client: %v", err)
	}
	first.release()
	if err := second.Take(500); err != nil {
		t.Errorf("what the client has given back: %v", err)
	}
}
