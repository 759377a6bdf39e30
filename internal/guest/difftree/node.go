package difftree

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/diffproto"
)

// name is an entry of a directory.
type name struct {
	text  string
	inode uint64
	kind  uint8 // DT_… of Linux
}

// parseNames reads records of getdents64(2): inode, offset (8 bytes each), length (2), type (1), name.
func parseNames(list []name, p []byte) ([]name, error) {
	const head = 19
	for len(p) > 0 {
		if len(p) < head {
			return nil, io.ErrUnexpectedEOF
		}
		n := int(binary.NativeEndian.Uint16(p[16:]))
		if n < head || n > len(p) {
			return nil, io.ErrUnexpectedEOF
		}
		text, _, _ := bytes.Cut(p[head:n], []byte{0})
		if t := string(text); t != "." && t != ".." && t != "" && !strings.Contains(t, "/") {
			list = append(list, name{t, binary.NativeEndian.Uint64(p), p[18]})
		}
		p = p[n:]
	}
	return list, nil
}

// typeOf returns the type of a file from its mode of stat(2).
func typeOf(mode uint32) diffproto.Type {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return diffproto.Regular
	case unix.S_IFDIR:
		return diffproto.Directory
	case unix.S_IFLNK:
		return diffproto.Symlink
	case unix.S_IFCHR:
		return diffproto.CharDevice
	case unix.S_IFBLK:
		return diffproto.BlockDevice
	case unix.S_IFIFO:
		return diffproto.FIFO
	case unix.S_IFSOCK:
		return diffproto.Socket
	}
	return diffproto.Absent
}

// nodeAt describes the file with the given name in the directory dir.
func nodeAt(dir int, file string) (n diffproto.Node, err error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, file, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return n, err
	}
	n = diffproto.Node{Type: typeOf(st.Mode), Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid}
	switch n.Type {
	case diffproto.Absent:
		return n, unix.EINVAL
	case diffproto.Regular:
		n.Size = uint64(st.Size)
	case diffproto.Symlink:
		var target [diffproto.MaxPath + 1]byte
		length, err := unix.Readlinkat(dir, file, target[:])
		if err != nil {
			return n, err
		}
		n.Target, n.Size = string(target[:min(length, diffproto.MaxPath)]), uint64(length)
		if strings.ContainsRune(n.Target, 0) {
			return n, unix.EINVAL
		}
	case diffproto.CharDevice, diffproto.BlockDevice:
		n.Device = uint64(unix.Major(st.Rdev))<<32 | uint64(unix.Minor(st.Rdev))
	}
	return n, nil
}

// maxXattr bounds the value of an extended attribute, and the list of the names of a file's
// extended attributes (XATTR_SIZE_MAX and XATTR_LIST_MAX of Linux).
const maxXattr = 64 << 10

// xattrsDiffer returns the names of the extended attributes that differ.
func xattrsDiffer(dirs [2]int, file string) ([]string, error) {
	var values [2]map[string]string
	for i, dir := range dirs {
		var err error
		if values[i], err = xattrs(fmt.Sprintf("/proc/self/fd/%d/%s", dir, file)); err != nil {
			return nil, err
		}
	}
	var differ []string
	for name, value := range values[0] {
		if other, ok := values[1][name]; !ok || other != value {
			differ = append(differ, name)
		}
	}
	for name := range values[1] {
		if _, ok := values[0][name]; !ok {
			differ = append(differ, name)
		}
	}
	slices.Sort(differ)
	return differ[:min(len(differ), diffproto.MaxXattrs)], nil
}

func xattrs(at string) (map[string]string, error) {
	list := make([]byte, maxXattr)
	n, err := unix.Llistxattr(at, list)
	if errors.Is(err, unix.ENOTSUP) || err == nil && n == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	values := make(map[string]string)
	value := make([]byte, maxXattr)
	for text := range bytes.SplitSeq(bytes.TrimSuffix(list[:n], []byte{0}), []byte{0}) {
		n, err := unix.Lgetxattr(at, string(text), value)
		if err != nil && !errors.Is(err, unix.ENODATA) {
			return nil, err
		}
		values[string(text)] = string(value[:max(0, n)])
	}
	return values, nil
}
