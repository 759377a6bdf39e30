package client

import "testing"

// Input that a process has taken is written, though the process has ended since.
func TestInputOfAProcessThatHasEndedWasWritten(t *testing.T) {
	for range 100 { // which of the two was noticed was chance
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
