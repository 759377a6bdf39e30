package v1

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http/httptest"
	"testing"
)

// What requests hold is counted beyond what is small, and given back when they end.
func TestMemory(t *testing.T) {
	m := &memory{left: 1000}
	request := func() (*share, func()) {
		r, done := m.sharing(httptest.NewRequest("POST", "/", nil))
		return shareOf(r), done
	}
	small, smallDone := request()
	large, largeDone := request()
	if err := errors.Join(small.take(smallShare), large.take(smallShare), large.take(900)); err != nil || m.left != 100 {
		t.Fatalf("%d bytes are left, %v", m.left, err)
	}
	if err := small.keep(26); !errors.Is(err, errNoMemory) || m.left != 100 {
		t.Errorf("more than there is: %v, %d bytes are left", err, m.left)
	}
	if err := small.keep(25); err != nil || m.left != 0 {
		t.Errorf("all that there is: %v, %d bytes are left", err, m.left)
	}
	other, otherDone := request()
	if n, err := io.Copy(io.Discard, other.body(bytes.NewReader(make([]byte, smallShare/copiesOfBody)))); err != nil || n == 0 {
		t.Errorf("a small body beside large ones: %v", err)
	}
	if _, err := io.ReadAll(other.body(bytes.NewReader([]byte("x")))); !errors.Is(err, errNoMemory) {
		t.Errorf("a body that is no longer small: %v", err)
	}
	for _, done := range []func(){smallDone, largeDone, otherDone} {
		done()
	}
	if m.left != 1000 {
		t.Errorf("%d bytes are left in the end", m.left)
	}
	if err := shareOf(httptest.NewRequest("POST", "/", nil).WithContext(context.Background())).take(1 << 40); err != nil {
		t.Errorf("of a request that has no share: %v", err)
	}
}
