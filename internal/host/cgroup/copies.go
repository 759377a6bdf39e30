package cgroup

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// copies has the files on tmpfs that the process of a leaf has written for the daemon. It maps a
// file's path to the file's inode number, because another file may later have the same path.
type copies map[string]uint64

// add records a file on tmpfs. It ignores a file on a disk, because the kernel can reclaim the page
// cache of such a file.
func (c *copies) add(f *os.File) (charged bool, err error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return false, fmt.Errorf("look at %s: %w", f.Name(), err)
	}
	if fs.Type != unix.TMPFS_MAGIC {
		return false, nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return false, fmt.Errorf("look at %s: %w", f.Name(), err)
	}
	if *c == nil {
		*c = make(copies)
	}
	(*c)[f.Name()] = st.Ino
	return true, nil
}

// bytes returns the memory that the files take. One file counts for no more than the given number
// of bytes. The call also removes deleted files from c.
func (c copies) bytes(most uint64) (sum uint64) {
	const block = 512 // unit of st_blocks, in bytes
	for path, inode := range c {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil || st.Ino != inode {
			delete(c, path)
			continue
		}
		sum += min(uint64(st.Blocks)*block, most)
	}
	return sum
}
