package jail

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// How late a timer of a thread may be, in nanoseconds (PR_SET_TIMERSLACK). A new thread has it of
// the one that makes it, and so has a new process.
const (
	usualSlack = 50_000     // Linux's own (init_task)
	startSlack = 10_000_000 // of a process while it starts
)

// OnTime ends that timers of this process may be late: those of one that a Starter's thread has
// started may, for that spares it the looks of Go's monitor while it prepares itself. The monitor
// is to look around every 20 us, which takes a tenth of the CPU time of such a start, and to take
// the processor of the Go scheduler away from each system call that it finds, for nobody. It has to
// be on time when there is somebody.
//
// It works in the jail of a program whose filter has OnTimeCall, and does nothing in a process that
// no Starter's thread has started: a test with the race detector has threads that Go does not know,
// and could not do it.
func OnTime() error {
	if os.Getenv(environment) != placed {
		return nil
	}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, usualSlack, 0)
	if errno != 0 {
		return fmt.Errorf("have timers on time: %w", errno)
	}
	return nil
}

// OnTimeCall is the system call of OnTime.
func OnTimeCall() Call {
	return With(unix.SYS_PRCTL, Is(0, unix.PR_SET_TIMERSLACK), Is(1, usualSlack))
}
