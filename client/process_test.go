package client

import "testing"

// A write succeeds if the process has taken the input, even if the process has ended since.
func TestInputOfAProcessThatHasEndedWasWritten(t *testing.T) {
	for range 100 { // Write may notice either of the two first
		p := &Process{sent: 2, taken: make(chan int64, 1), closed: make(chan struct{}), done: make(chan struct{})}
		p.taken <- 2
		close(p.done)
		if err := p.waitTaken(); err != nil {
			t.Fatal(err)
		}
	}
	p := &Process{sent: 3, taken: make(chan int64, 1), closed: make(chan struct{}), done: make(chan struct{})}
	p.taken <- 2
	close(p.done)
	if err := p.waitTaken(); err == nil {
		t.Error("input that the process has not taken is no error")
	}
}
