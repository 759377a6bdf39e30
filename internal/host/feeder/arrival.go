package feeder

import "github.com/forkd/forkd/internal/proto/vm"

// Arrival tells the users of served files if the missing parts will never arrive. It is nil for files
// that were complete from the beginning.
type Arrival struct {
	lost chan struct{}
	err  error // valid after lost is closed
}

// NewArrival returns an Arrival for files whose missing parts may still arrive.
func NewArrival() *Arrival { return &Arrival{lost: make(chan struct{})} }

// Lose records that the missing parts will never arrive, and the reason. It may be called only once.
func (a *Arrival) Lose(reason error) {
	a.err = reason
	close(a.lost)
}

// Lost returns a channel that is closed when the missing parts will never arrive.
func (a *Arrival) Lost() <-chan struct{} {
	if a == nil {
		return nil
	}
	return a.lost
}

// Err returns the reason why the missing parts will never arrive, or nil.
func (a *Arrival) Err() error {
	select {
	case <-a.Lost():
		return a.err
	default:
		return nil
	}
}

// Explain returns the reason why a VM with the files ended: Err or, if that is nil, exit.
func (a *Arrival) Explain(exit vm.Exit) vm.Exit {
	if err := a.Err(); err != nil {
		return vm.Exit{Reason: vm.ExitInternal, Detail: err.Error()}
	}
	return exit
}
