// Package writertest blocks a write to a file for ever, like a VMM that its guest controls. It
// works only in tests that run as root, because it needs /dev/userfaultfd.
package writertest

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// variable is the name of an environment variable. If it is set, the test program is a copy that
// blocks a write to its descriptor 3.
const variable = "FORKD_TEST_BLOCKED_WRITE"

// lifetime is the maximum lifetime of the process with the blocked write. A test that waits for the
// lock of the file cannot be killed before that time.
const lifetime = 20 * time.Second

// Main is to be called by TestMain of a package that uses Block. It runs the tests, and returns the
// exit status.
func Main(m *testing.M) int {
	if os.Getenv(variable) == "" {
		return m.Run()
	}
	time.AfterFunc(lifetime, func() { os.Exit(1) })
	fmt.Println(block(os.NewFile(3, "file")))
	return 1
}

// Block starts another process, a copy of the test program. The process writes to a file from a page
// of memory whose content never arrives, so the write blocks. Close of the result ends the process.
func Block(t testing.TB, f *os.File) io.Closer {
	t.Helper()
	if _, err := os.Stat("/dev/userfaultfd"); err != nil || os.Getuid() != 0 {
		t.Skip("needs root and /dev/userfaultfd")
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.ExtraFiles = append(os.Environ(), variable+"=1"), []*os.File{f}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	p := process{cmd}
	t.Cleanup(func() { p.Close() })
	line := make([]byte, 256)
	n, _ := out.Read(line) // an empty line is not "ready"
	if string(line[:n]) != "ready\n" {
		t.Fatalf("the process that blocks a write: %s", line[:n])
	}
	for end := time.Now().Add(lifetime); !isWaiting(cmd.Process.Pid); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the write is not blocked")
		}
	}
	return p
}

type process struct{ *exec.Cmd }

// Close ends the process and waits for its end.
func (p process) Close() error {
	if err := p.Process.Kill(); err != nil {
		return err
	}
	_ = p.Wait() // a killed process has an exit status
	return nil
}

// isWaiting reports whether a thread of the process waits in handle_userfault, the function of Linux
// that waits for the answer to a page fault.
func isWaiting(pid int) bool {
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid)) // none after an error
	for _, task := range tasks {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/wchan", pid, task.Name()))
		if string(name) == "handle_userfault" {
			return true
		}
	}
	return false
}

// Constants of linux/userfaultfd.h.
const (
	newDescriptor = 0xaa00     // USERFAULTFD_IOC_NEW
	setAPI        = 0xc018aa3f // UFFDIO_API
	register      = 0xc020aa00 // UFFDIO_REGISTER
	api           = 0xaa       // UFFD_API
	missing       = 1          // UFFDIO_REGISTER_MODE_MISSING
)

// block begins a write to the file f. The write never ends: the data is in a page whose page fault
// is never answered. block returns only after an error.
func block(f *os.File) error {
	dev, err := os.OpenFile("/dev/userfaultfd", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, dev.Fd(), newDescriptor, unix.O_CLOEXEC)
	if errno != 0 {
		return fmt.Errorf("userfaultfd: %w", errno)
	}
	agreed := struct{ api, features, ioctls uint64 }{api: api}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, setAPI, uintptr(unsafe.Pointer(&agreed))); errno != 0 {
		return fmt.Errorf("UFFDIO_API: %w", errno)
	}
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	pages := struct{ start, length, mode, ioctls uint64 }{
		uint64(uintptr(unsafe.Pointer(&page[0]))), uint64(len(page)), missing, 0}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, register, uintptr(unsafe.Pointer(&pages))); errno != 0 {
		return fmt.Errorf("UFFDIO_REGISTER: %w", errno)
	}
	fmt.Println("ready")
	_, err = unix.Pwrite(int(f.Fd()), page, 0)
	return fmt.Errorf("the write has ended: %w", err)
}
