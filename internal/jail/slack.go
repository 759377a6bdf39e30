package jail

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Values for PR_SET_TIMERSLACK: how late a thread's timers may be, in nanoseconds. New threads and
// processes inherit the value.
const (
	usualSlack = 50_000     // the default of Linux (init_task)
	startSlack = 10_000_000 // while a process starts
)

// OnTime makes the timers of this process punctual. A Starter's thread starts processes with late
// timers. If timers were punctual during a start, Go's monitor thread would wake up every 20 us,
// and take a tenth of the start's CPU time. The monitor would also take the processor of the Go
// scheduler from each blocking system call, although no other goroutine waits for a processor. Once
// there are other goroutines, the monitor must be punctual.
//
// In a jail, the filter must permit OnTimeCall. OnTime does nothing in a process that was not
// started by a Starter's thread, because it might not work in such a process. For example, a test
// with the race detector has threads that Go does not know.
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

// OnTimeCall is the system call that OnTime makes.
func OnTimeCall() Call {
	return With(unix.SYS_PRCTL, Is(0, unix.PR_SET_TIMERSLACK), Is(1, usualSlack))
}
