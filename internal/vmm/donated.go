package vmm

import (
	"fmt"
	"os"

	"github.com/forkd/forkd/internal/proto/ctlsock"
	"github.com/forkd/forkd/internal/proto/vmmproto"
	"github.com/forkd/forkd/internal/rawcall"
	"github.com/forkd/forkd/internal/vmm/machine"
)

// donated holds the descriptors that came with a request. The handler of the request takes them in
// order. Descriptors that it does not take are closed when the request ends.
type donated struct{ fds []int }

func donate(fds []int) *donated { return &donated{fds} }

// take returns the next descriptor as a file that the caller owns. If there is no further
// descriptor, it returns nil.
func (d *donated) take() *os.File {
	if len(d.fds) == 0 {
		return nil
	}
	return os.NewFile(uintptr(d.takeFD()), "donated")
}

// takeFD is like take but returns a bare descriptor. There must be a further descriptor.
func (d *donated) takeFD() int {
	fd := d.fds[0]
	d.fds = d.fds[1:]
	return fd
}

// takeFDs takes n descriptors.
func (d *donated) takeFDs(n int) ([]int, error) {
	if n < 0 || n > len(d.fds) {
		return nil, fmt.Errorf("request names %d files, %d descriptors came with it", n, len(d.fds))
	}
	fds := d.fds[:n:n]
	d.fds = d.fds[n:]
	return fds, nil
}

func (d *donated) takeN(n int) ([]*os.File, error) {
	fds, err := d.takeFDs(n)
	files := make([]*os.File, len(fds))
	for i, fd := range fds {
		files[i] = os.NewFile(uintptr(fd), "donated")
	}
	return files, err
}

// closeAll closes the descriptors that takeFDs returned.
func closeAll(fds []int) {
	for _, fd := range fds {
		_ = rawcall.Close(fd)
	}
}

// disks takes the descriptors of the layers of all disks.
func (d *donated) disks(specs []vmmproto.Disk) ([]machine.Disk, error) {
	disks := make([]machine.Disk, len(specs))
	for i, spec := range specs {
		layers, err := d.takeN(int(spec.Layers))
		if err != nil {
			return nil, fmt.Errorf("disk %d: %w", i, err)
		}
		disks[i] = machine.Disk{SizeBytes: spec.SizeBytes, Layers: layers, Volume: spec.Volume}
	}
	return disks, nil
}

func (d *donated) closeRest() { ctlsock.CloseAll(d.fds) }
