package gate

import (
	"context"
	"errors"
	"testing"
)

// Contexts are cancelled while there is urgent work. When all urgent work is done, new contexts are
// not cancelled.
func TestWay(t *testing.T) {
	var w Way
	free := func(want bool) {
		t.Helper()
		if err := w.Context().Err(); (err == nil) != want {
			t.Errorf("free %v: %v", want, err)
		}
	}
	free(true)
	before := w.Context()
	why := errors.New("a suspension")
	first := w.Clear(why)
	if cause := context.Cause(before); !errors.Is(cause, why) {
		t.Errorf("work of before: %v", cause)
	}
	second := w.Clear(errors.New("another"))
	if cause := context.Cause(w.Context()); !errors.Is(cause, why) {
		t.Errorf("work that begins meanwhile: %v", cause)
	}
	first()
	free(false)
	second()
	free(true)
}
