// Package difftree is forkd-diff, the init of a VM that compares the files of two disks.
//
// It mounts both disks read-only, dials the host, and has the conversation of package diffproto. The VM
// has no network and no other program, and the host kills it in every case.
//
// The host knows which parts of the disks may differ, because they are layers over the same base. Where
// the inode of a path is the same on both disks, its file is equal, and nothing of it is read. So the
// cost is that of the names of all directories, and of the files that have changed. If the file systems
// are not of the same form, everything is compared.
//
// Both disks belong to guests. The kernel of this VM reads their file systems; here nothing of them is
// trusted: no link is followed, no file but regular ones is opened, and time and memory are bounded.
package difftree

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"time"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/guest/kmsg"
	"github.com/forkd/forkd/internal/guest/pid1"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/diffproto"
)

// memoryLimit is the heap size that the garbage collector aims at, in bytes. The VM has more: the
// page cache takes the rest.
const memoryLimit = 256 << 20

// maxFiles is how many files may be open. Each level of the present directory takes two.
const maxFiles = 16 << 10

// disk is one of the two disks, and where it is mounted.
type disk struct{ device, dir string }

var disks = [2]disk{{pid1.RootDevice, "/old"}, {"/dev/vdb", "/new"}}

// Main returns only if the machine cannot be switched off.
func Main() int {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "forkd-diff: want to be the init of a VM")
		return 1
	}
	debug.SetMemoryLimit(memoryLimit)
	log, err := pid1.EarlyLog()
	if err == nil {
		err = serve(log)
	}
	pid1.PowerOff(log, err)
	return 1
}

func serve(log *kmsg.Log) error {
	if err := pid1.Devices(log); err != nil {
		return err
	}
	conn, err := vsock.Dial(agentproto.HostCID, diffproto.Port, nil)
	if err != nil {
		return fmt.Errorf("dial vsock port %d of the host: %w", diffproto.Port, err)
	}
	defer conn.Close()
	out := bufio.NewWriterSize(conn, 64<<10)
	done, err := answer(conn, out)
	if err != nil {
		log.Errorf("compare: %v", err)
		err = diffproto.WriteRefused(out, err)
	} else {
		err = diffproto.WriteDone(out, done)
	}
	if err := errors.Join(err, out.Flush()); err != nil {
		return err
	}
	wait(conn)
	return errors.New("the host has left")
}

// wait reads until the host closes the connection. The host kills the VM first.
func wait(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

func answer(in io.Reader, out io.Writer) (done diffproto.Done, err error) {
	req, err := diffproto.ReadRequest(in)
	if err != nil {
		return done, err
	}
	limit := unix.Rlimit{Cur: maxFiles, Max: maxFiles}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return done, fmt.Errorf("raise the number of open files: %w", err)
	}
	var roots [2]int
	var raw [2]*os.File
	for i, d := range disks {
		if roots[i], err = d.mount(); err != nil {
			return done, err
		}
		if raw[i], err = os.Open(d.device); err != nil {
			return done, err
		}
	}
	changed, err := changedInodes(raw, in)
	if err != nil {
		return done, err
	}
	return compare(roots, req, changed, func(e *diffproto.Entry) error { return diffproto.WriteEntry(out, e) })
}

// changedInodes reads the ranges and finds the inodes in them that differ.
func changedInodes(raw [2]*os.File, in io.Reader) (*changes, error) {
	f, err := newFinder(raw[0], raw[1])
	if err != nil {
		return &changes{}, diffproto.ReadRanges(in, func(diffproto.Range) error { return nil })
	}
	if err := diffproto.ReadRanges(in, f.add); err != nil {
		return nil, err
	}
	return &f.found, nil
}

// deviceTime bounds the wait for the second disk.
const deviceTime = 20 * time.Second

// mount mounts a disk and opens its root. If the file system has a journal that was not written back,
// Linux does that now; the writes go to an empty layer over the disk, which is lost with the VM.
func (d *disk) mount() (root int, err error) {
	for end := time.Now().Add(deviceTime); ; time.Sleep(time.Millisecond) {
		if _, err = os.Stat(d.device); err == nil || time.Now().After(end) {
			break
		}
	}
	if err != nil {
		return 0, err
	}
	if err := os.MkdirAll(d.dir, 0o755); err != nil {
		return 0, err
	}
	const flags = unix.MS_RDONLY | unix.MS_NOATIME | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOSUID
	if err := unix.Mount(d.device, d.dir, "ext4", flags, "errors=continue"); err != nil {
		return 0, fmt.Errorf("mount %s: %w", d.device, err)
	}
	return unix.Open(d.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}
