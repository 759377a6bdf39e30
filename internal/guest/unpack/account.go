package unpack

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The account that the stream's header can request. E2B's images have an account with the same name
// and number. If the number is taken, the account gets the next free number.
const (
	accountName       = "user"
	minUserID         = 1000
	maxUserID         = 59999 // Debian policy §9.2.2
	maxAccountBytes   = 1 << 20
	maxSkeleton       = 1000 // files in /etc/skel
	skeletonDir       = "etc/skel"
	sudoersDir        = "etc/sudoers.d"
	accountHome       = "home/" + accountName
	sudoersLine       = accountName + " ALL=(ALL:ALL) NOPASSWD: ALL\n"
	passwd, grp, shdw = "etc/passwd", "etc/group", "etc/shadow"
)

// newFile is a file or directory to add to images that lack it.
type newFile struct {
	name     string
	mode     uint32 // permissions and file type
	uid, gid int
	data     []byte
}

// defaultFiles returns files that programs expect on every Linux system. A base may lack these
// files, because container runtimes create them when they start a container. An image from scratch
// may even have no users.
func defaultFiles() []newFile {
	return []newFile{
		{name: passwd, mode: unix.S_IFREG | 0o644, data: []byte(
			"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")},
		{name: grp, mode: unix.S_IFREG | 0o644, data: []byte("root:x:0:\nnogroup:x:65534:\n")},
		{name: "root", mode: unix.S_IFDIR | 0o700},
		{name: "etc/hosts", mode: unix.S_IFREG | 0o644, data: []byte(
			"127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n")},
		// The file is empty, so that each sandbox gets an id of its own; see machine-id(5).
		{name: "etc/machine-id", mode: unix.S_IFREG | 0o444},
	}
}

// addDefault adds a file if the image lacks it, or has an empty file in its place. If a part of the
// file's path is not a directory, it adds nothing.
func (t *tree) addDefault(f newFile) error {
	dir, base, err := t.dirOf(f.name, true)
	if errors.Is(err, errNoPath) {
		return nil
	}
	if err != nil {
		return err
	}
	st, ok, err := stat(dir, base)
	if err != nil {
		return err
	}
	if ok && (st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > 0 || len(f.data) == 0) {
		return nil
	}
	return t.add(f)
}

// add replaces a file of the tree, or creates a directory, which must not exist yet.
func (t *tree) add(f newFile) error {
	dir, base, err := t.dirOf(f.name, true)
	if err != nil {
		return err
	}
	if f.mode&unix.S_IFMT == unix.S_IFDIR {
		if err := unix.Mkdirat(dir, base, 0o700); err != nil {
			return err
		}
	} else if err := t.remove(dir, base); err != nil {
		return err
	} else if err := unix.Mknodat(dir, base, unix.S_IFREG|0o600, 0); err != nil {
		return err
	}
	fd, err := t.open(f.name, unix.O_RDONLY|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if f.mode&unix.S_IFMT == unix.S_IFREG {
		if err := t.rewrite(f.name, f.data); err != nil {
			return err
		}
	} else {
		t.times[f.name] = noTime
	}
	if err := unix.Fchown(fd, f.uid, f.gid); err != nil {
		return err
	}
	return unix.Fchmod(fd, f.mode&0o7777)
}

// read returns the content of a regular file, or nil if the file does not exist.
func (t *tree) read(name string) ([]byte, error) {
	fd, err := t.open(name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("/%s is no regular file", name)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxAccountBytes+1))
	if err == nil && len(text) > maxAccountBytes {
		err = fmt.Errorf("/%s is larger than %d bytes", name, maxAccountBytes)
	}
	return append([]byte{}, text...), err // never nil, because the file exists
}

// rewrite replaces the content of an existing file. The file keeps its owner, mode and hard links.
func (t *tree) rewrite(name string, data []byte) error {
	fd, err := t.open(name, unix.O_WRONLY|unix.O_TRUNC|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.Write(data)
	return errors.Join(err, setTime(fd, "", noTime), f.Close())
}

// addAccount adds the account "user" if the image has no such account. It is called after the
// default files have been added.
func (t *tree) addAccount() error {
	users, err := t.read(passwd)
	if err != nil {
		return err
	}
	groups, err := t.read(grp)
	if err != nil {
		return err
	}
	secrets, err := t.read(shdw)
	if err != nil {
		return err
	}
	if users == nil || groups == nil {
		return errors.New("the image has no /etc/passwd or /etc/group, and its /etc is no directory")
	}
	if field(users, accountName, 0) == "" {
		gid, err := accountID(groups, grp)
		if err != nil {
			return err
		}
		uid, err := accountID(users, passwd)
		if err != nil {
			return err
		}
		shell := "/bin/sh"
		if t.isFile("bin/bash") || t.isFile("usr/bin/bash") {
			shell = "/bin/bash"
		}
		users = appendLine(users, fmt.Sprintf("%s:x:%d:%d::/%s:%s", accountName, uid, gid, accountHome, shell))
		if err := t.rewrite(passwd, users); err != nil {
			return err
		}
		if field(groups, accountName, 0) == "" {
			if err := t.rewrite(grp, appendLine(groups, fmt.Sprintf("%s:x:%d:", accountName, gid))); err != nil {
				return err
			}
		}
		if secrets != nil && field(secrets, accountName, 0) == "" { // add a passwordless account that never expires
			if err := t.rewrite(shdw, appendLine(secrets, accountName+":*::0:99999:7:::")); err != nil {
				return err
			}
		}
		if err := t.addHome(uid, gid); err != nil {
			return err
		}
	}
	fd, err := t.open(sudoersDir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil // the package sudo is not installed
	}
	unix.Close(fd)
	return t.addMissing(newFile{name: sudoersDir + "/" + accountName, mode: unix.S_IFREG | 0o440,
		data: []byte(sudoersLine)})
}

func (t *tree) isFile(name string) bool {
	fd, err := t.open(name, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG
}

func (t *tree) addMissing(f newFile) error {
	dir, base, err := t.dirOf(f.name, true)
	if err != nil {
		return err
	}
	if _, ok, err := stat(dir, base); ok || err != nil {
		return err
	}
	return t.add(f)
}

// addHome adds the account's home directory, with copies of the files in /etc/skel.
func (t *tree) addHome(uid, gid int) error {
	if err := t.addMissing(newFile{name: accountHome, mode: unix.S_IFDIR | 0o755, uid: uid, gid: gid}); err != nil {
		return err
	}
	left := maxSkeleton
	return t.addSkeleton("", uid, gid, &left)
}

// addSkeleton copies the content of the directory sub of /etc/skel to the home directory. It skips
// symbolic links and devices. It subtracts the number of files from *left, and fails if *left
// becomes negative.
func (t *tree) addSkeleton(sub string, uid, gid int, left *int) error {
	fd, err := t.open(path.Join(skeletonDir, sub), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return nil // the directory does not exist
	}
	defer unix.Close(fd)
	names, err := list(fd)
	if err != nil {
		return err
	}
	for _, base := range names {
		if *left--; *left < 0 {
			return fmt.Errorf("/%s has more than %d files", skeletonDir, maxSkeleton)
		}
		st, ok, err := stat(fd, base)
		if err != nil || !ok {
			return err
		}
		name := path.Join(sub, base)
		f := newFile{name: path.Join(accountHome, name), mode: st.Mode, uid: uid, gid: gid}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			if err := t.addMissing(f); err != nil {
				return err
			}
			err = t.addSkeleton(name, uid, gid, left)
		case unix.S_IFREG:
			if f.data, err = t.read(path.Join(skeletonDir, name)); err == nil {
				err = t.addMissing(f)
			}
		}
		if err != nil {
			return fmt.Errorf("/%s: %w", path.Join(skeletonDir, name), err)
		}
	}
	return nil
}

// accountID returns the number of the account "user" in the text of a file. If the text has no such
// account, accountID returns a free number. The parameter name is the name of the file.
func accountID(text []byte, name string) (int, error) {
	if id, err := strconv.Atoi(field(text, accountName, 2)); err == nil {
		return id, nil
	}
	taken := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if f := strings.Split(line, ":"); len(f) > 2 {
			taken[f[2]] = true
		}
	}
	for id := minUserID; id <= maxUserID; id++ {
		if !taken[strconv.Itoa(id)] {
			return id, nil
		}
	}
	return 0, fmt.Errorf("/%s has no number left for an account", name)
}

// field returns one field of an account's line, or "" if there is no such line. The parameter n is
// the number of the field, counted from 0.
func field(text []byte, name string, n int) string {
	for line := range strings.Lines(string(text)) {
		if f := strings.Split(strings.TrimSpace(line), ":"); f[0] == name && n < len(f) {
			return f[n]
		}
	}
	return ""
}

func appendLine(text []byte, line string) []byte {
	text = bytes.Clone(text)
	if len(text) > 0 && text[len(text)-1] != '\n' {
		text = append(text, '\n')
	}
	return append(text, line+"\n"...)
}
