package envd

import (
	"errors"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/forkd/forkd/internal/proto/envdproto/filesystem"
)

// describer describes directory entries. It caches account names, which are read from files.
type describer struct {
	users  map[uint32]string
	groups map[uint32]string
}

func newDescriber() *describer {
	return &describer{users: map[uint32]string{}, groups: map[uint32]string{}}
}

// entry describes path. For a symbolic link it returns the type and mode of the link's target, but
// the permission string of the link itself. Invalid UTF-8 in names is replaced, because a message
// cannot contain it.
func (d *describer) entry(path string) (*filesystem.EntryInfo, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	e := &filesystem.EntryInfo{
		Name:         text(info.Name()),
		Path:         text(path),
		Size:         info.Size(),
		Type:         fileType(info.Mode()),
		Mode:         uint32(info.Mode().Perm()),
		Permissions:  info.Mode().String(),
		ModifiedTime: timestamppb.New(info.ModTime()),
		Metadata:     metadata(path),
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		e.Owner = d.name(d.users, st.Uid, func(id string) (string, error) {
			u, err := user.LookupId(id)
			if err != nil {
				return "", err
			}
			return u.Username, nil
		})
		e.Group = d.name(d.groups, st.Gid, func(id string) (string, error) {
			g, err := user.LookupGroupId(id)
			if err != nil {
				return "", err
			}
			return g.Name, nil
		})
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		raw, err := os.Readlink(path)
		if err == nil && utf8.ValidString(raw) {
			e.SymlinkText = &raw
		}
		if target, evalErr := filepath.EvalSymlinks(path); evalErr == nil {
			target = text(target)
			e.SymlinkTarget = &target
		} else if err == nil {
			target = text(raw)
			e.SymlinkTarget = &target
		}
		if at, err := os.Stat(path); err == nil {
			e.Type, e.Mode = fileType(at.Mode()), uint32(at.Mode().Perm())
		}
	}
	return e, nil
}

func text(name string) string { return strings.ToValidUTF8(name, "\uFFFD") }

// name returns the name of an account, or its number as text if it has no name.
func (d *describer) name(known map[uint32]string, id uint32, lookup func(string) (string, error)) string {
	if n, ok := known[id]; ok {
		return n
	}
	number := strconv.FormatUint(uint64(id), 10)
	n, err := lookup(number)
	if err != nil {
		n = number
	}
	known[id] = n
	return n
}

func fileType(m fs.FileMode) filesystem.FileType {
	switch m.Type() {
	case 0:
		return filesystem.FileType_FILE_TYPE_FILE
	case fs.ModeDir:
		return filesystem.FileType_FILE_TYPE_DIRECTORY
	case fs.ModeSymlink:
		return filesystem.FileType_FILE_TYPE_SYMLINK
	}
	return filesystem.FileType_FILE_TYPE_UNSPECIFIED
}

// metadataPrefix begins the names of the extended attributes that hold E2B's metadata of a file.
const metadataPrefix = "user.e2b."

// Bounds on metadata, in bytes. maxMetadataKey bounds a key without metadataPrefix; the kernel
// allows 255 bytes including the prefix. maxMetadataTotal bounds all keys and values together.
const (
	maxMetadataKey   = 246
	maxMetadataTotal = 4096
)

// metadata returns a file's metadata. The result is nil if the file has none, or if the file system
// does not support extended attributes.
func metadata(path string) map[string]string {
	var out map[string]string
	for _, name := range metadataNames(path) {
		value := make([]byte, maxMetadataTotal)
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			continue // the entry was removed in the meantime
		}
		if out == nil {
			out = map[string]string{}
		}
		out[strings.TrimPrefix(name, metadataPrefix)] = string(value[:n])
	}
	return out
}

func metadataNames(path string) []string {
	size, err := unix.Llistxattr(path, nil)
	if err != nil || size == 0 {
		return nil
	}
	buf := make([]byte, size)
	if size, err = unix.Llistxattr(path, buf); err != nil {
		return nil
	}
	var out []string
	for name := range strings.SplitSeq(string(buf[:size]), "\x00") {
		if strings.HasPrefix(name, metadataPrefix) {
			out = append(out, name)
		}
	}
	return out
}

// setMetadata replaces a file's metadata.
func setMetadata(path string, set map[string]string) error {
	for _, name := range metadataNames(path) {
		if err := unix.Lremovexattr(path, name); err != nil && !errors.Is(err, unix.ENODATA) {
			return &fs.PathError{Op: "remove metadata of", Path: path, Err: err}
		}
	}
	for k, v := range set {
		if err := unix.Lsetxattr(path, metadataPrefix+k, []byte(v), 0); err != nil {
			return &fs.PathError{Op: "set metadata of", Path: path, Err: err}
		}
	}
	return nil
}
