// Package difftree is forkd-diff, the init of a VM that compares the files of two disks, and packs the files
// that differ. With three disks, it packs the changes of one disk since a common base, for another disk.
//
// It dials the host, mounts the disks read-only, and speaks the protocol of package diffproto. The VM
// has no network and no other program. The host kills the VM at the end, and on every error.
//
// The disks consist of layers over the same base, so the host knows which parts of the disks may
// differ. difftree compares the inodes in these parts first. If a path has the same inode number on
// both disks, and the inodes are equal, the file has not changed and is not read. So a comparison
// has to read all directories, but only those files that have changed. If the inodes of the two
// file systems are at different places, difftree compares all files.
//
// The disks belong to guests, so difftree trusts nothing on them. It follows no symbolic link, opens
// only directories and regular files, and bounds its memory. The file systems themselves are read by the
// kernel of the VM.
package difftree

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/guest/kmsg"
	"github.com/forkd/forkd/internal/guest/pid1"
	"github.com/forkd/forkd/internal/proto/diffproto"
)

// maxFiles is how many files may be open. A walk needs two open files for each directory on the
// path to the present directory.
const maxFiles = 16 << 10

// disk is the device of a disk, and the directory where it is mounted.
type disk struct{ device, dir string }

// disks are the two sides of a comparison, or the three sides of a merge: base, from and onto.
var disks = [3]disk{{pid1.RootDevice, "/old"}, {"/dev/vdb", "/new"}, {"/dev/vdc", "/onto"}}

// Main serves the request of the host and then switches the VM off. It returns only if the VM
// cannot be switched off.
func Main() int {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "forkd-diff: want to be the init of a VM")
		return 1
	}
	return pid1.Helper(diffproto.Port, serve)
}

func serve(log *kmsg.Log, conn net.Conn) error {
	out := bufio.NewWriterSize(conn, 64<<10)
	err := answer(conn, out)
	if err != nil {
		log.Errorf("compare: %v", err)
		err = diffproto.WriteRefused(out, err)
	}
	if err := errors.Join(err, out.Flush()); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, conn) // usually the host kills the VM before it closes the connection
	return nil
}

// answer answers a request. If it returns an error, the answer is incomplete.
func answer(in io.Reader, out io.Writer) error {
	req, err := diffproto.ReadRequest(in)
	if err != nil {
		return err
	}
	limit := unix.Rlimit{Cur: maxFiles, Max: maxFiles}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("raise the number of open files: %w", err)
	}
	sides, pairs := 2, pairsOfMerge[:1]
	if req.Merge != nil {
		sides, pairs = 3, pairsOfMerge[:]
	}
	roots, raw := [3]int{absent, absent, absent}, make([]io.ReaderAt, sides)
	for i, d := range disks[:sides] {
		if roots[i], err = d.mount(); err != nil {
			return err
		}
		if raw[i], err = os.Open(d.device); err != nil {
			return err
		}
	}
	changed, err := changedInodes(raw, pairs, in)
	if err != nil {
		return err
	}
	if req.Merge != nil {
		return merge(roots, req, changed, out)
	}
	return answerPair([2]int(roots[:2]), req, changed[0], out)
}

// answerPair answers a request about two disks.
func answerPair(roots [2]int, req diffproto.Request, changed *changes, out io.Writer) error {
	finish := func(done diffproto.Done) error { return diffproto.WriteDone(out, done) }
	if req.Tar {
		return export(roots, req, changed, finish, diffproto.NewPieceWriter(out))
	}
	done, err := compare(roots, req, changed, func(e *diffproto.Entry) error { return diffproto.WriteEntry(out, e) })
	if err != nil {
		return err
	}
	return finish(done)
}

// changedInodes reads the ranges that the host sends, and finds the inodes in these ranges that
// differ between the two disks of each pair.
func changedInodes(raw []io.ReaderAt, pairs [][2]int, in io.Reader) ([]*changes, error) {
	found := make([]*changes, len(pairs))
	var finders []*finder
	for i, pair := range pairs {
		f, err := newFinder(raw[pair[0]], raw[pair[1]])
		if err != nil {
			found[i] = &changes{} // all inodes may differ
			continue
		}
		found[i], finders = &f.found, append(finders, f)
	}
	return found, diffproto.ReadRanges(in, func(v diffproto.Range) error {
		for _, f := range finders {
			if err := f.add(v); err != nil {
				return err
			}
		}
		return nil
	})
}

// deviceTime bounds the wait for the second disk.
const deviceTime = 20 * time.Second

// mount mounts a disk and opens its root directory. If the file system's journal has changes that
// are not in the file system yet, Linux writes them during the mount. These writes are stored in an
// empty layer on top of the disk. The layer is lost with the VM.
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
