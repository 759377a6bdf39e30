// Package volfiles is forkd-files, the init of a VM that serves one request for the files of a
// volume. Package filesproto describes the request and the answer.
//
// The VM has the volume as its only disk, no network and no other program. The kernel of the VM
// reads the file system. A link in the volume cannot lead out of the volume.
package volfiles

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/guest/kmsg"
	"github.com/forkd/forkd/internal/guest/pid1"
	"github.com/forkd/forkd/internal/proto/filesproto"
)

// mountPoint is the directory where the volume is mounted.
const mountPoint = "/volume"

// Main serves the request of the host and then switches the VM off. It returns only if the VM cannot
// be switched off.
func Main() int {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "forkd-files: want to be the init of a VM")
		return 1
	}
	return pid1.Helper(filesproto.Port, serve)
}

func serve(_ *kmsg.Log, conn net.Conn) error {
	req, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	resp, done, err := answerOnDisk(req)
	if err != nil {
		resp = failed(fmt.Errorf("the volume: %w", err))
	}
	err = resp.Write(conn)
	done()
	if err != nil {
		return fmt.Errorf("send the answer: %w", err)
	}
	_, _ = io.Copy(io.Discard, conn) // the host kills the VM when it has the answer
	return nil
}

// answerOnDisk mounts the volume and answers a request. The caller must call done after it has sent
// the answer. If the request changes files, the volume is already unmounted when answerOnDisk
// returns.
func answerOnDisk(req *http.Request) (resp *http.Response, done func(), err error) {
	reads := req.Method == http.MethodGet
	if err := mount(reads); err != nil {
		return nil, func() {}, err
	}
	root, err := os.OpenRoot(mountPoint)
	if err != nil {
		return nil, func() {}, err
	}
	done = func() { _ = root.Close() }
	resp = answer(root, req)
	_, _ = io.Copy(io.Discard, req.Body) // the host sends the whole body before it reads the answer
	if reads {
		return resp, done, nil
	}
	if err := errors.Join(root.Close(), unix.Unmount(mountPoint, 0)); err != nil {
		return nil, func() {}, fmt.Errorf("unmount: %w", err)
	}
	return resp, func() {}, nil
}

// deviceTime bounds the wait for the disk.
const deviceTime = 20 * time.Second

// mount mounts the volume. If its journal has changes that are not in the file system yet, Linux
// writes them during the mount, even if the mount is read-only.
func mount(reads bool) (err error) {
	for end := time.Now().Add(deviceTime); ; time.Sleep(time.Millisecond) {
		if _, err = os.Stat(pid1.RootDevice); err == nil || time.Now().After(end) {
			break
		}
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(mountPoint, 0o755); err != nil {
		return err
	}
	flags := uintptr(unix.MS_NOATIME | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOSUID)
	if reads {
		flags |= unix.MS_RDONLY
	}
	if err := unix.Mount(pid1.RootDevice, mountPoint, "ext4", flags, "errors=remount-ro"); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	return nil
}
