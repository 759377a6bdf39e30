package volfiles

import (
	"fmt"
	"io/fs"
	"syscall"
)

// sysOf returns the result of stat(2) in a FileInfo.
func sysOf(info fs.FileInfo) (*syscall.Stat_t, error) {
	sys, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, fmt.Errorf("stat %s: no owner", info.Name())
	}
	return sys, nil
}
