package jail

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Values for PR_SET_TIMERSLACK, which says how late a thread's timers may be, in nanoseconds. New
// threads and processes inherit it.
const (
	usualSlack = 50_000     // default of Linux (init_task)
	startSlack = 10_000_000 // for a process while it starts
)

// OnTime makes the timers of this process punctual. A Starter's thread starts processes with late
// timers, which spares them the wake-ups of Go's monitor while they prepare themselves. The monitor
// would wake up every 20 us, which takes a tenth of the CPU time of such a start. It would also
// take the processor of the Go scheduler from each system call, although no other goroutine waits.
// Once there are other goroutines, the monitor must be on time.
//
// OnTime works in the jail of a program whose filter has OnTimeCall. It does nothing in a process
// that was not started by a Starter's thread. In a test with the race detector, for example, it
// could not work, because such a test has threads that Go does not know.
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
