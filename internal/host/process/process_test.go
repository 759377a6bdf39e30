package process

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/jail/violation"
)

// sleeper starts a process that runs until it is killed. It also returns the path of the process's
// record.
func sleeper(t *testing.T) (*Process, string) {
	t.Helper()
	dir := t.TempDir()
	bin, record := filepath.Join(dir, "sleeper"), filepath.Join(dir, "pid")
	if err := os.WriteFile(bin, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	p, err := Start(Spec{Name: "sleeper", Bin: bin, Record: record})
	if err != nil {
		t.Fatal(err)
	}
	return p, record
}

// Find finds a running process by its record. If the pid in the record now belongs to a process
// with a different start time, Find returns an error.
func TestFind(t *testing.T) {
	p, record := sleeper(t)
	again, err := Find("sleeper", record)
	if err != nil || again.PID() != p.PID() {
		t.Fatalf("%+v, %v", again, err)
	}
	again.Release()
	if err := errors.Join(p.Kill(), p.Wait()); err != nil {
		t.Fatal(err)
	}
	if _, err := Find("sleeper", record); err == nil {
		t.Error("a process that has ended was found")
	}
	start, err := startTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "x 1", "1"} {
		if err := os.WriteFile(record, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Find("sleeper", record); err == nil {
			t.Errorf("record %q finds a process", text)
		}
	}
	other := &Process{pid: os.Getpid()}
	if err := other.record(&Spec{Name: "test", Record: record}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	if self, err := Find("test", record); err != nil {
		t.Errorf("%s does not find this process, which began at %s: %v", text, start, err)
	} else {
		self.Release()
	}
	if err := os.WriteFile(record, append(text[:len(text)-1], '0'), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Find("test", record); err == nil {
		t.Error("a process with another start time was found")
	}
}

// When a process has ended, its pid may soon belong to another process, and its descriptor number
// may refer to another file. Kill must not kill that other process.
func TestKillAfterTheEndKillsNobody(t *testing.T) {
	gone, _ := sleeper(t)
	number := gone.pidfd.Fd()
	if err := gone.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := gone.Wait(); err != nil {
		t.Fatal(err)
	}
	other, _ := sleeper(t)
	if other.pidfd.Fd() != number {
		t.Logf("descriptors %d and %d", number, other.pidfd.Fd())
	}
	if err := gone.Kill(); err != nil {
		t.Errorf("kill of a process that has ended: %v", err)
	}
	poll := []unix.PollFd{{Fd: int32(other.pidfd.Fd()), Events: unix.POLLIN}}
	if n, err := unix.Poll(poll, 200); n != 0 {
		t.Errorf("the other process has ended: %d, %v", n, err)
	}
	if err := errors.Join(other.Kill(), other.Wait()); err != nil {
		t.Fatal(err)
	}
}

// The output of a process can be read after the process has ended, even if the Process comes from
// Find. The output is bounded.
func TestSaid(t *testing.T) {
	dir := t.TempDir()
	bin, record, fifo := filepath.Join(dir, "speaker"), filepath.Join(dir, "pid"), filepath.Join(dir, "fifo")
	script := "#!/bin/sh\necho began >&2; read line < " + fifo +
		"; head -c 20000000 /dev/zero | tr '\\0' x >&2; echo more >&2\n"
	if err := errors.Join(os.WriteFile(bin, []byte(script), 0o700), unix.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	p, err := Start(Spec{Name: "speaker", Bin: bin, Record: record})
	if err != nil {
		t.Fatal(err)
	}
	again, err := Find("speaker", record)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(fifo, []byte("go on\n"), 0); err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]*Process{"started": p, "found": again} {
		if err := p.Wait(); err != nil {
			t.Fatal(err)
		}
		if said := p.Said(); !strings.HasPrefix(said, "began\nxxx") || !strings.HasSuffix(said, "xxx") ||
			len(said) != 2*keptOfLog+len(logGap) {
			t.Errorf("%s: %d bytes, %.20q", name, len(said), said)
		}
	}
}

// If a log is longer than the part that the daemon keeps, the middle of the log is dropped. A
// shorter log is kept completely.
func TestBothEndsOfALogAreKept(t *testing.T) {
	for _, size := range []int{0, 1, keptOfLog, keptOfLog + 1, 2*keptOfLog - 1, 2 * keptOfLog, 2*keptOfLog + 1,
		7*keptOfLog + 5, logSize} {
		f, err := newLog("test", logSize)
		if err != nil {
			t.Fatal(err)
		}
		text := make([]byte, size)
		for i := range text {
			text[i] = byte(i%251) + 1 // the period, 251, does not divide the size of a chunk
		}
		if _, err := f.Write(text); err != nil {
			t.Fatal(err)
		}
		want := string(text)
		if size > 2*keptOfLog {
			want = want[:keptOfLog] + logGap + want[size-keptOfLog:]
		}
		if got := readLog(f); got != want {
			t.Errorf("of %d bytes: %d, want %d that are the ends", size, len(got), len(want))
		}
		_ = f.Close()
	}
}

// The report of a forbidden system call names the call. Even if the report has the maximum length,
// the parts that are kept show the call.
func TestForbiddenCallIsNamedFromBothEnds(t *testing.T) {
	f, err := newLog("test", logSize)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const begin, end = "SIGSYS: bad system call\nPC=0x47a2ce m=0 sigcode=1\n", "\nrax    0x29\nrbx    0x0\n"
	goroutines := strings.Repeat("goroutine 7 [select]:\n", 4<<20/22)
	if _, err := f.WriteString(begin + goroutines + end); err != nil {
		t.Fatal(err)
	}
	if call := violation.Call(readLog(f)); call != "socket" {
		t.Errorf("it names %q", call)
	}
}

// If too many files are open, Find cannot read the start time of a process. Then it must not report
// that the process has ended.
func TestFindWithoutFiles(t *testing.T) {
	p, record := sleeper(t)
	defer func() {
		if err := errors.Join(p.Kill(), p.Wait()); err != nil {
			t.Error(err)
		}
	}()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	next, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(next)
	one := limit
	one.Cur = uint64(next) + 1 // enough to open the pidfd, but no other file
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &one); err != nil {
		t.Fatal(err)
	}
	_, err = Find("sleeper", record)
	if restored := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); restored != nil {
		t.Fatal(restored)
	}
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("find: %v, want %v", err, unix.EMFILE)
	}
}
