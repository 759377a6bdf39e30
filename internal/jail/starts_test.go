package jail

import (
	"testing"
	"time"
)

// await waits only for starts that began before its call, and not longer than the given time.
func TestAwaitStarts(t *testing.T) {
	var s starts
	s.await(time.Hour)
	first, second := s.begin(), s.begin()
	s.await(time.Millisecond)
	done := make(chan struct{})
	begun := make(chan struct{})
	go func() {
		close(begun)
		s.await(time.Hour)
		close(done)
	}()
	<-begun
	first()
	select {
	case <-done:
		t.Error("the second start was not awaited")
	case <-time.After(50 * time.Millisecond):
	}
	second()
	<-done
	if len(s.running) != 0 {
		t.Errorf("%d starts are left", len(s.running))
	}
	(*Starter)(nil).AwaitStarts()
}
