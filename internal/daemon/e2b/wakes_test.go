package e2b

import (
	"errors"
	"fmt"
	"testing"

	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/owner"
)

// Requests that wait for one sandbox leave places for requests to other sandboxes. Requests of
// strangers leave places for requests of clients with a token.
func TestWakes(t *testing.T) {
	w := newWakes()
	var leave []func()
	enter := func(id string, stranger bool, want error) {
		t.Helper()
		stop, err := w.enter(id, "", stranger)
		if !errors.Is(err, want) {
			t.Errorf("a request to %s: %v, want %v", id, err, want)
		}
		if err == nil {
			leave = append(leave, stop)
		}
	}
	for range strangersOf(maxWaiting) {
		enter("0", true, nil)
	}
	enter("0", true, face.ErrTooMany)
	for range maxWaiting - strangersOf(maxWaiting) {
		enter("0", false, nil)
	}
	enter("0", false, face.ErrTooMany)
	for i := 1; i < strangersOf(maxWakes); i++ {
		enter(fmt.Sprint(i), true, nil)
	}
	enter("another", true, face.ErrTooMany)
	enter("1", true, nil) // the sandbox already has a place
	for i := strangersOf(maxWakes); i < maxWakes; i++ {
		enter(fmt.Sprint(i), false, nil)
	}
	enter("1", false, nil)
	enter("another", false, face.ErrTooMany)
	for _, stop := range leave {
		stop()
	}
	if len(w.of) != 0 {
		t.Errorf("%v wait when all have left", w.of)
	}
}

// The number of requests that wait for the sandboxes of one owner is bounded. Only some of these
// requests can be requests of strangers.
func TestWaitingRequestsOfOneOwner(t *testing.T) {
	w := newWakes()
	enter := func(who string, stranger bool) (n int) { // returns how many requests are accepted before one is refused
		for id := range maxWakes {
			for range maxWaiting {
				if _, err := w.enter(fmt.Sprint(who, id), who, stranger); err != nil {
					break
				}
				n++
			}
		}
		return n
	}
	if n := enter("token:a", true); n != strangersOf(maxOwnWaiting) {
		t.Errorf("%d requests of strangers wait, want %d", n, strangersOf(maxOwnWaiting))
	}
	if n := enter("token:a", false); n != maxOwnWaiting-strangersOf(maxOwnWaiting) {
		t.Errorf("%d requests more wait, want %d", n, maxOwnWaiting-strangersOf(maxOwnWaiting))
	}
	if n := enter("token:b", false); n != maxOwnWaiting {
		t.Errorf("%d requests of another owner wait, want %d", n, maxOwnWaiting)
	}
	if n := enter(owner.Anyone, false); n != maxAllWaiting-2*maxOwnWaiting {
		t.Errorf("%d requests of clients that cannot be told apart wait, want %d", n, maxAllWaiting-2*maxOwnWaiting)
	}
}

// While sandboxes of one owner are being resumed, another owner's sandboxes can also be resumed.
// This also holds if strangers resume the sandboxes of the first owner.
func TestWakesOfOneOwner(t *testing.T) {
	for _, stranger := range []bool{false, true} {
		w := newWakes()
		n := 0
		for ; n <= maxWakes; n++ {
			if _, err := w.enter(fmt.Sprint("a", n), "token:a", stranger); err != nil {
				break
			}
		}
		if n == 0 || n >= maxWakes {
			t.Errorf("strangers %v: one owner has %d of %d places", stranger, n, maxWakes)
		}
		if _, err := w.enter("b", "token:b", false); err != nil {
			t.Errorf("strangers %v: another owner: %v", stranger, err)
		}
	}
}

// While strangers resume sandboxes of one owner, other strangers can resume another owner's
// sandboxes.
func TestStrangersWakesOfOneOwner(t *testing.T) {
	w := newWakes()
	n := 0
	for ; n <= maxWakes; n++ {
		if _, err := w.enter(fmt.Sprint("a", n), "token:a", true); err != nil {
			break
		}
	}
	if n == 0 || n >= strangersOf(maxWakes) {
		t.Errorf("strangers wake %d sandboxes of one owner, of %d", n, strangersOf(maxWakes))
	}
	if _, err := w.enter("b", "token:b", true); err != nil {
		t.Errorf("a stranger for a sandbox of another owner: %v", err)
	}
}
