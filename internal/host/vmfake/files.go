package vmfake

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/console"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

func newConsole(path string) (*console.Ring, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := console.Format(f); err != nil {
		return nil, err
	}
	return console.Open(f)
}

// openConsole opens the console ring of a VM that an earlier daemon has started.
func openConsole(path string) (*console.Ring, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return console.Open(f)
}

// OpenConsole implements vmpool.VMMs.
func (f *VMMs) OpenConsole(dir string) (*os.File, error) {
	return os.Open(filepath.Join(dir, consoleFile))
}

// Print writes text to the guest's console, unless the VM has ended.
func (v *VMM) Print(text string) {
	v.all.Mu.Lock()
	defer v.all.Mu.Unlock()
	if v.console != nil {
		v.console.WriteString(text)
	}
}

// holdLocked keeps a duplicate of f open for writing, if a test has set KeepTops.
func (v *VMM) holdLocked(f *os.File) error {
	if !v.all.KeepTops {
		return nil
	}
	own, err := duplicate(f)
	if err == nil {
		v.kept = append(v.kept, own)
	}
	return err
}

// swapTopLocked switches the VM to another top of a disk. It duplicates the descriptor of the new
// top and closes the old top.
func (v *VMM) swapTopLocked(d *layers, top *os.File) error {
	if v.all.KeepTops {
		v.kept = append(v.kept, d.top)
	} else {
		d.top.Close() // Close of a nil file only returns an error
	}
	var err error
	d.top, err = duplicate(top)
	return err
}

// takeDisksLocked replaces the disks of the VM. From then on, the VM writes to the tops of the new
// disks. Empty volume slots have no files.
func (v *VMM) takeDisksLocked(specs []vmmproto.Disk, disks [][]*os.File) error {
	if len(specs) != len(disks) {
		return fmt.Errorf("files of %d disks for %d disks", len(disks), len(specs))
	}
	specs = slices.Clone(specs)
	for i := range specs {
		specs[i].Layers = uint32(len(disks[i]))
	}
	v.all.Disks = append(v.all.Disks, specs)
	old := v.disks
	v.disks = nil
	for i, disk := range disks {
		d := layers{first: len(disk) - 1, now: len(disk) - 1}
		if i < len(old) {
			d.top = old[i].top
		}
		var err error
		if len(disk) > 0 {
			err = v.swapTopLocked(&d, disk[len(disk)-1])
		} else if d.top != nil {
			d.top.Close()
			d.top = nil
		}
		v.disks = append(v.disks, d)
		if err != nil {
			return err
		}
	}
	return nil
}

func duplicate(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// sameFile reports whether two descriptors refer to the same file.
func sameFile(a, b *os.File) bool {
	first, errA := a.Stat()
	second, errB := b.Stat()
	return errA == nil && errB == nil && os.SameFile(first, second)
}
