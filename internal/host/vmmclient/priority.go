package vmmclient

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// vmmNice is how many steps of nice a VMM stands below the daemon. When guests take all there is, the daemon still gets
// nine times the CPU of each (sched_prio_to_weight, kernel/sched/core.c): it answers while ten guests compute. Where CPU
// is idle, a nice guest is as fast as any other.
const vmmNice = 10

// startBelow is os.StartProcess, and the process, with all its threads, is vmmNice steps below the calling one.
//
// Threads inherit nice from the one that makes them, and without privileges none can take it back. So it is set on a
// thread that starts the process and ends: setting it on the new process would miss threads that it makes just then.
func startBelow(name string, argv []string, attr *os.ProcAttr) (p *os.Process, err error) {
	onEndingThread(func() {
		if err = addNice(vmmNice); err == nil {
			p, err = os.StartProcess(name, argv, attr)
		}
	})
	return p, err
}

// onEndingThread runs f on a thread that runs nothing else afterwards.
func onEndingThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() { // the main thread cannot end; as long as it is locked here, f gets another
			defer runtime.UnlockOSThread()
			onEndingThread(f)
			return
		}
		f() // the thread stays locked, so the runtime ends it with this goroutine
	}()
	<-done
}

// addNice lowers the priority of the calling thread.
func addNice(steps int) error {
	raw, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		return fmt.Errorf("get priority: %w", err)
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, min(20-raw+steps, 19)); err != nil { // the system call returns 20 - nice
		return fmt.Errorf("set priority: %w", err)
	}
	return nil
}

// autogroupRetry is how often Linux lets users without privileges change a session's priority: all of them together
// once in 100 ms.
const autogroupRetry = 100 * time.Millisecond

// lowerSession lowers the priority of a VMM's session, in the background. With autogroups (sched(7)), the default of most
// distributions, nice counts inside a session only, and each VMM leads one: sessions share the CPU equally, and the
// daemon would be one among its guests.
func lowerSession(pid int) {
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/autogroup", pid), os.O_WRONLY, 0) // later writes cannot meet another process
	if err != nil {
		return // a kernel without autogroups, where nice is enough
	}
	go func() {
		defer f.Close()
		for {
			if _, err := f.WriteString(strconv.Itoa(vmmNice)); !errors.Is(err, unix.EAGAIN) {
				return // done, or the process has ended
			}
			time.Sleep(autogroupRetry)
		}
	}()
}
