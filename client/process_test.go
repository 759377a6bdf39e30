package client

import "testing"

// A write succeeds if the process has read the input, even if the process has exited since then.
func TestInputOfAProcessThatHasEndedWasWritten(t *testing.T) {
	for range 100 { // the first thing that Write notices may be the read of the input or the end of the process
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
