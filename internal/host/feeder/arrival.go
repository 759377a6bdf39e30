package feeder

import (
	"sync"
	"time"

	"github.com/forkd/forkd/internal/proto/vm"
)

// Arrival connects the users of served files with the fetcher: the code that fetches the missing
// parts of these files. It tells the users if the parts will never arrive, and tells the fetcher if
// no user needs the parts any more. An Arrival is nil for files that were complete from the start.
type Arrival struct {
	lost  chan struct{}
	err   error         // valid after lost is closed
	kill  func()        // kills the process that serves the files
	stop  chan struct{} // closed by Cancel
	ended chan struct{} // closed by End
	once  sync.Once
}

// NewArrival returns an Arrival for files whose missing parts may still arrive. The process that
// serves them ends when kill is called.
func NewArrival(kill func()) *Arrival {
	return &Arrival{lost: make(chan struct{}), kill: kill, stop: make(chan struct{}), ended: make(chan struct{})}
}

// Cancel asks the fetcher to stop, and waits until the fetcher has called End.
func (a *Arrival) Cancel() {
	a.once.Do(func() { close(a.stop) })
	<-a.ended
}

// Canceled returns a channel that is closed when Cancel is called.
func (a *Arrival) Canceled() <-chan struct{} { return a.stop }

// End says that all parts have arrived or are lost, so no more parts are fetched. It may be called
// only once.
func (a *Arrival) End() { close(a.ended) }

// answerTime is how long a process may take to answer when a file is opened or closed. A working
// process answers at once, even if frames are missing.
const answerTime = 30 * time.Second

// Watch is called before the daemon opens or closes served files. While the process does not
// answer, the calling thread waits in the kernel, and nothing else can wake it. So Watch kills the
// process if done() is not called within answerTime.
func (a *Arrival) Watch() (done func()) {
	if a == nil {
		return func() {}
	}
	return watch(answerTime, a.kill)
}

// Apart calls f, which closes served files. If a is not nil, Apart does not wait for f.
func (a *Arrival) Apart(f func()) {
	if a == nil {
		f()
		return
	}
	go func() {
		defer a.Watch()()
		f()
	}()
}

func watch(limit time.Duration, kill func()) (done func()) {
	late := time.AfterFunc(limit, kill)
	return func() { late.Stop() }
}

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

// Explain returns the reason why a VM that uses the files has ended. This is Err or, if Err is nil,
// the given exit.
func (a *Arrival) Explain(exit vm.Exit) vm.Exit {
	if err := a.Err(); err != nil {
		return vm.Exit{Reason: vm.ExitInternal, Detail: err.Error()}
	}
	return exit
}
