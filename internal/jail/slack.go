package jail

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// How late a timer of a thread may be, in nanoseconds (PR_SET_TIMERSLACK). New threads and
// processes inherit it.
const (
	usualSlack = 50_000     // Linux's own (init_task)
	startSlack = 10_000_000 // of a process while it starts
)

// OnTime makes the timers of this process punctual. A Starter's thread starts processes with late
// timers, which spares them the wake-ups of Go's monitor while they prepare themselves: it would
// wake up every 20 us, which takes a tenth of the CPU time of such a start, and take the processor
// of the Go scheduler from each system call, although no other goroutine waits. When other
// goroutines exist, it must be on time.
//
// It works in the jail of a program whose filter has OnTimeCall. It does nothing in a process that
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
