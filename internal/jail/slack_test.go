package jail

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// OnTime changes no timers in a process that was not started by a Starter's thread.
func TestOnTimeIsForAStartersProcesses(t *testing.T) {
	runtime.LockOSThread() // stays locked, so that the thread ends together with its timer slack
	const slack = 3 * usualSlack
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, slack, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	for _, how := range []string{"", noNamespaces, ownMapped} {
		t.Setenv(environment, how)
		if err := OnTime(); err != nil {
			t.Errorf("%q: %v", how, err)
		}
		if got, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); got != slack || err != nil {
			t.Errorf("%q: timers may be %d ns late, %v; want %d", how, got, err, slack)
		}
	}
}
