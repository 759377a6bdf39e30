package reap

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMain runs initMode if the test binary was started as a child. The child adopts orphans, like
// PID 1.
func TestMain(m *testing.M) {
	if os.Getenv("REAP_TEST_INIT") != "" {
		os.Exit(initMode())
	}
	os.Exit(m.Run())
}

// initMode runs many children that leave orphans behind. It returns 0 if it has received every exit
// code, and no zombie is left.
func initMode() int {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 10
	}
	r := NewInit()
	var children []*Child
	for i := range 30 {
		// The subshell outlives its parent for a moment and becomes our orphan.
		c, err := r.Start(exec.Command("/bin/sh", "-c", "(sleep 0.05) & exit "+strconv.Itoa(i)))
		if err != nil {
			return 11
		}
		children = append(children, c)
	}
	for i, c := range children {
		if status := c.Status(); !status.Exited() || status.ExitStatus() != i {
			return 12
		}
	}
	for {
		// Every orphan ends. When there is no child left, the reaper has collected all of them.
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err == unix.ECHILD {
			return 0
		}
	}
}

func TestInitKeepsExitCodesAndCollectsOrphans(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "REAP_TEST_INIT=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("init mode: %v: %s", err, out)
	}
}

func TestStatusAndSignal(t *testing.T) {
	r := New()
	c, err := r.Start(exec.Command("/bin/sleep", "1000"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if status := c.Status(); !status.Signaled() || status.Signal() != syscall.SIGTERM {
		t.Fatalf("status = %v, want SIGTERM", status)
	}
	if err := c.Signal(syscall.SIGTERM); !errors.Is(err, ErrExited) {
		t.Fatalf("signal after exit: %v, want ErrExited", err)
	}
}

func TestStartReportsAMissingCommand(t *testing.T) {
	if _, err := New().Start(exec.Command("/no/such/command")); err == nil ||
		!strings.Contains(err.Error(), "no such file") {
		t.Fatalf("err = %v", err)
	}
}
