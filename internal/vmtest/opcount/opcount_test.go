package opcount

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestCounter(t *testing.T) {
	c := Start(t)
	pid := os.Getpid()
	before, err := c.Read(pid)
	if err != nil {
		t.Fatal(err)
	}
	numbers, err := c.Numbers(pid)
	if err != nil {
		t.Fatal(err)
	}
	const calls, pages = 1000, 100
	for range calls {
		unix.Getppid()
	}
	for range calls / 10 {
		_, _ = unix.IoctlGetInt(0, unix.TIOCGWINSZ+0x1234) // no descriptor knows the request
	}
	p, err := unix.Mmap(-1, 0, pages<<12, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(p)
	_ = unix.Madvise(p, unix.MADV_NOHUGEPAGE)
	for i := 0; i < len(p); i += 1 << 12 {
		p[i] = 1
	}
	time.Sleep(time.Millisecond) // gives up the CPU
	after, err := c.Read(pid)
	if err != nil {
		t.Fatal(err)
	}
	if did := after.Sub(before); did.Calls < calls || did.Faults < pages || did.Switches == 0 || did.Exits != 0 {
		t.Errorf("counted %+v", did)
	}
	now, err := c.Numbers(pid)
	if err != nil {
		t.Fatal(err)
	}
	did := now.Sub(numbers)
	if did[unix.SYS_GETPPID] != calls || did[unix.SYS_MMAP] == 0 || !strings.Contains(did.String(), "1000 call 110") {
		t.Errorf("counted %v", did)
	}
	if n, err := c.Ioctls(pid, unix.TIOCGWINSZ+0x1234); err != nil || n != calls/10 {
		t.Errorf("counted %d ioctls, %v", n, err)
	}
}

func TestParent(t *testing.T) {
	if parent("12 (a) b) S 34 1 1") != 34 || parent("nonsense") != 0 {
		t.Error("the parent is not the field after the state")
	}
	if p, err := os.ReadFile("/proc/self/stat"); err != nil || parent(string(p)) != os.Getppid() {
		t.Errorf("parent of this process: %v", err)
	}
}

// A count above its budget fails a test, and the message says what grew.
func TestBudget(t *testing.T) {
	failed := &recorder{TB: t}
	(Budget{"system calls", 3}).Check(failed, 3, nil)
	if failed.said != "" {
		t.Errorf("a count within its budget fails: %s", failed.said)
	}
	(Budget{"system calls", 3}).Check(failed, 4, Numbers{unix.SYS_READ: 3, unix.SYS_CLOSE: 1})
	if want := "system calls grew to 4, the budget is 3: 3 read, 1 close"; failed.said != want {
		t.Errorf("it says %q, want %q", failed.said, want)
	}
}

// recorder keeps the message of a failure instead of failing.
type recorder struct {
	testing.TB
	said string
}

func (r *recorder) Errorf(format string, args ...any) { r.said = fmt.Sprintf(format, args...) }
