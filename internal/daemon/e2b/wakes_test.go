package e2b

import (
	"fmt"
	"testing"
)

// However many requests wait for one sandbox, there is room for those to others.
func TestWakes(t *testing.T) {
	w := newWakes()
	var leave []func()
	enter := func(id string, want error) {
		t.Helper()
		stop, err := w.enter(id)
		if err != want {
			t.Errorf("a request to %s: %v, want %v", id, err, want)
		}
		if err == nil {
			leave = append(leave, stop)
		}
	}
	for range maxWaiting {
		enter("0", nil)
	}
	enter("0", errTooMany)
	for i := 1; i < maxWakes; i++ {
		enter(fmt.Sprint(i), nil)
	}
	enter("1", nil) // it has a place
	enter("another", errTooMany)
	for _, stop := range leave {
		stop()
	}
	if len(w.of) != 0 {
		t.Errorf("%v wait when all have left", w.of)
	}
}
