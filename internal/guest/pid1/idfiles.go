package pid1

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/guest/kmsg"
	"github.com/forkd/forkd/internal/rawcall"
)

// idDir contains the files that a fork rewrites. It is on tmpfs, and its files are mounted over the
// files that programs read. Writing to the disk instead would allocate disk blocks for each forked
// sandbox, and would wake the sandbox again when the journal is committed.
const idDir = "/run/forkd"

// Paths of the files that a fork rewrites.
const (
	machineIDPath = "/etc/machine-id"
	// also has the machine's id; in some images it is a file, in others a link
	dbusIDPath = "/var/lib/dbus/machine-id"
	bootIDPath = "/proc/sys/kernel/random/boot_id" // the kernel sets it once per boot; our file is mounted over it
	hostsPath  = "/etc/hosts"
)

// hostsDefault is the content of /etc/hosts for an image that has none.
const hostsDefault = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"

// maxHostname is HOST_NAME_MAX of Linux.
const maxHostname = 64

// hostsPrefix begins the first line of /etc/hosts, which resolves the host name. Debian uses this
// address for the host name. Spaces pad the line to a fixed length, so that one write can replace
// the line without moving the rest of the file.
const hostsPrefix = "127.0.1.1 "

type hostsLine [len(hostsPrefix) + maxHostname + 1]byte

func newHostsLine(name []byte) (l hostsLine) {
	for i := range l {
		l[i] = ' '
	}
	copy(l[:], hostsPrefix)
	copy(l[len(hostsPrefix):len(l)-1], name)
	l[len(l)-1] = '\n'
	return l
}

// newMachineID derives the machine id from the host name. So the id stays the same when a sandbox
// is rolled back or resumed, and it differs between siblings because their names differ. Like the
// name, the id is not secret. newMachineID works on the stack and allocates nothing.
func newMachineID(name []byte) (id [33]byte) {
	const prefix = "forkd machine-id "
	sum := sha256.Sum256(append(append(make([]byte, 0, len(prefix)+maxHostname), prefix...), name...))
	sum[6], sum[8] = sum[6]&0x0f|0x40, sum[8]&0x3f|0x80 // UUID version 4, as systemd requires
	hex.Encode(id[:], sum[:16])
	id[32] = '\n'
	return id
}

// newBootID returns a random UUID. Programs that compare boot ids treat a fork, a rollback or a
// resumption like a boot. The bytes are read from a descriptor of /dev/urandom. getrandom in the
// vDSO is not used, because it keeps a generator in each thread's memory, and a fork would copy
// that generator.
func newBootID(random int) (id [37]byte, err error) {
	var r [16]byte
	if n, err := rawcall.Read(random, r[:]); err != nil || n != len(r) {
		return id, fmt.Errorf("boot id: read %d random bytes: %w", n, err)
	}
	r[6], r[8] = r[6]&0x0f|0x40, r[8]&0x3f|0x80
	at := 0
	for _, part := range [][]byte{r[:4], r[4:6], r[6:8], r[8:10], r[10:]} {
		at += hex.Encode(id[at:], part)
		id[at] = '-'
		at++
	}
	id[36] = '\n'
	return id, nil
}

// idFiles are descriptors of the files in idDir, and of /dev/urandom. A descriptor is negative if
// its file could not be mounted.
type idFiles struct {
	random, machineID, bootID, hosts int
	shared                           []string // files that could not be mounted; all siblings have the image's files
}

// write writes the files for a host name.
func (f idFiles) write(name []byte) error { return f.put(name, false) }

// rehearse makes the system calls of the method write for the present name, but leaves the files
// unchanged.
func (f idFiles) rehearse() error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Errorf("uname: %w", err)
	}
	n := bytes.IndexByte(u.Nodename[:], 0)
	return f.put(u.Nodename[:max(n, 0)], true)
}

func (f idFiles) put(name []byte, rehearsal bool) error {
	if f.machineID >= 0 {
		id := newMachineID(name)
		if err := writeAt(f.machineID, id[:], rehearsal); err != nil {
			return fmt.Errorf("set %s: %w", machineIDPath, err)
		}
	}
	if f.bootID >= 0 {
		id, err := newBootID(f.random)
		if err == nil {
			err = writeAt(f.bootID, id[:], rehearsal)
		}
		if err != nil {
			return fmt.Errorf("set %s: %w", bootIDPath, err)
		}
	}
	if f.hosts >= 0 {
		if err := writeHosts(f.hosts, name, rehearsal); err != nil {
			return fmt.Errorf("set %s: %w", hostsPath, err)
		}
	}
	return nil
}

// writeHosts replaces the first line of /etc/hosts. If the user has changed that line, writeHosts
// does nothing.
func writeHosts(fd int, name []byte, rehearsal bool) error {
	var was hostsLine
	n, err := rawcall.Pread(fd, was[:], 0)
	if err != nil {
		return err
	}
	if n < len(was) || string(was[:len(hostsPrefix)]) != hostsPrefix || was[len(was)-1] != '\n' {
		return nil
	}
	line := newHostsLine(name)
	return writeAt(fd, line[:], rehearsal)
}

// writeAt replaces the beginning of a file. In a rehearsal it makes the same system call with no
// bytes.
func writeAt(fd int, p []byte, rehearsal bool) error {
	if rehearsal {
		p = p[:0]
	}
	if n, err := rawcall.Pwrite(fd, p, 0); err != nil || n != len(p) {
		return fmt.Errorf("wrote %d of %d bytes: %w", n, len(p), err)
	}
	return nil
}

// mountIDFiles creates the files and mounts them. If a file cannot be mounted, for example because
// a read-only disk lacks the path, it logs a warning. Programs then see the image's file, and every
// fork reports that the file is shared.
func mountIDFiles(random int, name []byte, log *kmsg.Log) idFiles {
	files := idFiles{random: random, machineID: -1, bootID: -1, hosts: -1}
	if err := os.MkdirAll(idDir, dirMode); err != nil {
		log.Warnf("identity: %v", err)
		files.shared = []string{machineIDPath, bootIDPath, hostsPath}
		return files
	}
	hosts, err := os.ReadFile(hostsPath)
	if err != nil {
		hosts = []byte(hostsDefault)
	}
	line := newHostsLine(name)
	for _, f := range []struct {
		fd      *int
		name    string
		mode    fs.FileMode
		content []byte
		targets []string
	}{
		{&files.machineID, "machine-id", 0o444, nil, []string{machineIDPath, dbusIDPath}},
		{&files.bootID, "boot_id", 0o444, nil, []string{bootIDPath}},
		{&files.hosts, "hosts", 0o644, append(line[:], hosts...), []string{hostsPath}},
	} {
		fd, err := newIDFile(idDir+"/"+f.name, f.mode, f.content)
		if err == nil {
			*f.fd = fd
			err = mountOver(idDir+"/"+f.name, f.targets)
		}
		if err != nil {
			log.Warnf("identity: %v", err)
			files.shared = append(files.shared, f.targets[0])
		}
	}
	if err := files.write(name); err != nil {
		log.Warnf("identity: %v", err)
	}
	return files
}

func newIDFile(path string, mode fs.FileMode, content []byte) (int, error) {
	if err := os.WriteFile(path, content, mode); err != nil {
		return -1, err
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// mountOver mounts the file at path over the targets. It creates the first target if this target is
// missing. It skips other targets that are not regular files.
func mountOver(path string, targets []string) error {
	for i, target := range targets {
		info, err := os.Lstat(target)
		switch {
		case i > 0 && (err != nil || !info.Mode().IsRegular()):
			continue
		case errors.Is(err, fs.ErrNotExist):
			if err := os.WriteFile(target, nil, 0o644); err != nil {
				return err
			}
		case err != nil:
			return err
		}
		if err := unix.Mount(path, target, "", unix.MS_BIND, ""); err != nil {
			return &os.PathError{Op: "mount over", Path: target, Err: err}
		}
	}
	return nil
}
