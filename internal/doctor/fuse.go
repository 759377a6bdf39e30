package doctor

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"
)

// fuse checks whether snapshots can be forked while they arrive from a registry.
func (h *Host) fuse() Finding {
	if !h.root {
		return skip("a daemon that is not root pulls whole snapshots: no snapshot is forked before all of it is there")
	}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return judgeFUSE(err)
}

func judgeFUSE(err error) Finding {
	const without = ": 'forkd pull --lazy' and 'forkd fork REGISTRY/NAME:TAG' first pull the whole snapshot"
	switch {
	case err == nil:
		return pass("a snapshot can be forked before all of it is there")
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return warn("this host has no FUSE" + without).by(asRoot("modprobe fuse"))
	case errors.Is(err, fs.ErrPermission):
		return warn("this process may not use FUSE" + without).by(
			byHand("give the container the device, such as docker run --device /dev/fuse"))
	}
	return warn(err.Error() + without)
}
