package gate

import (
	"testing"
	"time"
)

func TestWithin(t *testing.T) {
	calls := 0
	if !Within(time.Minute, func() { calls++ }, func() { calls++ }) || calls != 2 {
		t.Errorf("%d calls", calls)
	}
	end := make(chan struct{})
	ended := make(chan struct{})
	if Within(time.Millisecond, func() { <-end }, func() { close(ended) }) {
		t.Error("it has returned before its functions, and reports that they have ended")
	}
	close(end)
	<-ended
}
