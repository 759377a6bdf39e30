// Package writertest blocks a write to a file, or the last close of a socket, for ever, as a VMM can
// that its guest controls. It works only in tests that run as root, because it needs
// /dev/userfaultfd.
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

// Settings of the environment that make a copy of the test program block.
const (
	variable  = "FORKD_TEST_BLOCKED"
	write     = "write"
	HoldClose = variable + "=close" // blocks the last close of the socket that is its descriptor 3
)

// lifetime is how long a process that blocks lives at most. A test that waits for the lock of the
// file cannot be killed before.
const lifetime = 20 * time.Second

// Main is to be called by TestMain of a package that uses this package. It runs the tests, and returns the
// exit status.
func Main(m *testing.M) int {
	how := os.Getenv(variable)
	if how == "" {
		return m.Run()
	}
	time.AfterFunc(lifetime, func() { os.Exit(1) })
	page, err := unansweredPage()
	if err == nil && how == write {
		fmt.Println("ready")
		_, err = unix.Pwrite(3, page, 0)
	} else if err == nil {
		err = holdClose(3, page)
	}
	fmt.Println("not blocked:", err)
	return 1
}

// Block makes another process, a copy of the test program, write to a file from a page of memory that
// never arrives. Close of the result ends the process.
func Block(t testing.TB, f *os.File) io.Closer {
	t.Helper()
	Need(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.ExtraFiles = append(os.Environ(), variable+"="+write), []*os.File{f}
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
	WaitBlocked(t, cmd.Process.Pid)
	return p
}

// Need skips the test if no process can block here.
func Need(t testing.TB) {
	t.Helper()
	if _, err := os.Stat("/dev/userfaultfd"); err != nil || os.Getuid() != 0 {
		t.Skip("needs root and /dev/userfaultfd")
	}
}

// WaitBlocked waits until a process blocks.
func WaitBlocked(t testing.TB, pid int) {
	t.Helper()
	for end := time.Now().Add(lifetime); !isWaiting(pid); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("process %d does not block", pid)
		}
	}
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

// unansweredPage returns a page of memory. A system call that uses the page waits for ever.
func unansweredPage() ([]byte, error) {
	dev, err := os.OpenFile("/dev/userfaultfd", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, dev.Fd(), newDescriptor, unix.O_CLOEXEC)
	if errno != 0 {
		return nil, fmt.Errorf("userfaultfd: %w", errno)
	}
	agreed := struct{ api, features, ioctls uint64 }{api: api}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, setAPI, uintptr(unsafe.Pointer(&agreed))); errno != 0 {
		return nil, fmt.Errorf("UFFDIO_API: %w", errno)
	}
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	pages := struct{ start, length, mode, ioctls uint64 }{
		uint64(uintptr(unsafe.Pointer(&page[0]))), uint64(len(page)), missing, 0}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, register, uintptr(unsafe.Pointer(&pages))); errno != 0 {
		return nil, fmt.Errorf("UFFDIO_REGISTER: %w", errno)
	}
	return page, nil
}

// holdClose waits for events of a socket, and closes its own descriptor. While epoll_wait(2) is
// blocked, it holds a lock that the last close of the socket needs.
func holdClose(socket int, page []byte) error {
	poll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	// The socket is writable, so there is an event at once.
	if err := unix.EpollCtl(poll, unix.EPOLL_CTL_ADD, socket, &unix.EpollEvent{Events: unix.EPOLLOUT}); err != nil {
		return err
	}
	if err := unix.Close(socket); err != nil {
		return err
	}
	_, _, errno := unix.Syscall6(unix.SYS_EPOLL_WAIT, uintptr(poll), uintptr(unsafe.Pointer(&page[0])), 1, 0, 0, 0)
	return errno
}
