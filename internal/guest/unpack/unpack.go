// Package unpack is the init of a builder VM: it fills the VM's disk, a blank ext4 file system,
// with the files of a container image.
//
// It dials the host, mounts the disk, reads one stream of package imageproto, applies its layers as
// root, and adds the files and the account that every image of forkd has. Then it discards the free
// space, unmounts the disk, answers, and waits until the host closes the connection. The VM has no
// network, no other program and no other disk. The host always kills it in the end.
//
// Layers are hostile. Nothing in them can lead out of the tree, and the time, memory and disk space
// that they take are bounded (see tree). If a layer breaks a rule, the whole image is refused, with
// an error that names the entry. The package builds nothing and starts nothing from the image.
//
// On a host, forkd-unpack with arguments applies the stream on its standard input to a directory.
// Builds use this mode for Debian bases, which mmdebstrap makes on the host.
package unpack

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/guest/disk"
	"github.com/forkd/forkd/internal/guest/kmsg"
	"github.com/forkd/forkd/internal/guest/pid1"
	"github.com/forkd/forkd/internal/proto/imageproto"
)

// Main is the program forkd-unpack. As the init of a VM, it returns only if the VM cannot be
// powered off. On a host, args are a directory and the maximum size of its content in bytes. Main
// then reads the stream from stdin, and writes the answer to stdout.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if os.Getpid() != 1 {
		if err := fillDir(args, stdin, stdout); err != nil {
			fmt.Fprintln(stderr, "forkd-unpack:", err)
			return 1
		}
		return 0
	}
	return pid1.Helper(imageproto.Port, serve)
}

// mountPoint is the directory of the initramfs on which the disk is mounted.
const mountPoint = "/newroot"

func serve(_ *kmsg.Log, conn net.Conn) error {
	if err := imageproto.WriteAnswer(conn, fillDisk(pid1.RootDevice, mountPoint, conn)); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, conn) // read the rest of a refused stream
	time.Sleep(exitTime)
	return nil
}

// exitTime is how long the host has to read the answer and kill the VM. The host may end the stream before
// it has read the answer.
const exitTime = time.Minute

// fillDisk mounts the empty file system of a device on dir and fills it. It returns nil only if all
// data is on the disk, because it also returns errors of writes that the kernel has delayed.
func fillDisk(device, dir string, stream io.Reader) (err error) {
	unix.Umask(0)
	dev, err := os.Open(device) // dev.Sync reports errors of all writes from now on
	if err != nil {
		return err
	}
	defer dev.Close()
	// This VM uses no device and no program of the image.
	const flags = unix.MS_NOATIME | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOSUID
	if err := unix.Mount(device, dir, "ext4", flags, ""); err != nil {
		return fmt.Errorf("mount %s: %w", device, err)
	}
	if err := fillMounted(dir, stream); err != nil {
		return err
	}
	if err := unix.Unmount(dir, 0); err != nil {
		return fmt.Errorf("unmount the disk: %w", err)
	}
	if err := dev.Sync(); err != nil {
		return fmt.Errorf("write the disk: %w", err)
	}
	return checkClean(dev)
}

// fillMounted fills a mounted file system and writes it to the disk.
func fillMounted(dir string, stream io.Reader) error {
	root, err := os.Open(dir) // syncfs(2) on root reports errors of all writes from now on
	if err != nil {
		return err
	}
	defer root.Close()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return err
	}
	if err := fill(dir, int64(st.Blocks)*st.Bsize, false, stream); err != nil {
		return err
	}
	if err := disk.Trim(dir); err != nil {
		return err
	}
	if err := unix.Syncfs(int(root.Fd())); err != nil {
		return fmt.Errorf("write the disk: %w", err)
	}
	return nil
}

// checkClean returns nil only if the file system on a device was unmounted completely and the
// kernel has found no error in it (Linux Documentation/filesystems/ext4/super.rst).
func checkClean(dev io.ReaderAt) error {
	const (
		superblock = 1024
		state      = 0x3a  // s_state
		cleanly    = 1     // the only bit that may be set in s_state: unmounted without errors
		errorCount = 0x194 // s_error_count
	)
	var sb [1024]byte
	if _, err := dev.ReadAt(sb[:], superblock); err != nil {
		return fmt.Errorf("read the disk: %w", err)
	}
	if s := binary.LittleEndian.Uint16(sb[state:]); s != cleanly {
		return fmt.Errorf("the file system has the state %#x after it was unmounted: want %d", s, cleanly)
	}
	if n := binary.LittleEndian.Uint32(sb[errorCount:]); n != 0 {
		return fmt.Errorf("the kernel has found %d errors in the file system", n)
	}
	return nil
}

// fillDir applies a stream to a directory of a host. It omits device nodes, because they cannot be
// created in a user namespace, and because guests mount devtmpfs anyway.
func fillDir(args []string, stream io.Reader, answer io.Writer) error {
	if len(args) != 2 {
		return errors.New("want a directory and the maximum size of its content in bytes, or to be the init of a builder VM")
	}
	size, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil || size <= 0 {
		return fmt.Errorf("%q: want a number of bytes", args[1])
	}
	unix.Umask(0)
	return imageproto.WriteAnswer(answer, fill(args[0], size, true, stream))
}

// fill applies a stream to the directory dir. The disk has the given size in bytes. If host is
// true, the directory is on a host and not in a builder VM.
func fill(dir string, size int64, host bool, stream io.Reader) error {
	in := imageproto.NewReader(bufio.NewReaderSize(stream, 256<<10))
	header, err := in.Header()
	if err != nil {
		return err
	}
	t, err := newTree(dir, size, host)
	if err != nil {
		return err
	}
	defer t.close()
	for i, l := range header.Layers {
		if err := t.apply(l, in.Layer()); err != nil {
			if l.Files {
				return fmt.Errorf("files of the recipe: %w", err)
			}
			return fmt.Errorf("layer %d: %w", i+1, err)
		}
	}
	t.placed = nil
	for _, f := range defaultFiles() {
		if err := t.addDefault(f); err != nil {
			return fmt.Errorf("default file /%s: %w", f.name, t.full(err))
		}
	}
	if header.User {
		if err := t.addAccount(); err != nil {
			return fmt.Errorf("user: %w", t.full(err))
		}
	}
	return t.setTimes()
}
