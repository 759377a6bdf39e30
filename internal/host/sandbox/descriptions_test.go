package sandbox

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// seeker is a VMM that moves the offset of every file that it can read. It fails the test if the
// daemon shares an offset with it.
type seeker struct {
	*vmfake.VMM
	t    *testing.T
	seen *int
}

func (v seeker) Boot(ctx context.Context, req vmmproto.Boot, files vmmclient.BootFiles) error {
	v.move("boot", files.Disks[0][:len(files.Disks[0])-1]...)
	return v.VMM.Boot(ctx, req, files)
}

func (v seeker) Restore(ctx context.Context, req vmmproto.Restore, files vmmclient.RestoreFiles) (
	vmmproto.RestoreResult, error) {
	v.move("restore", files.Disks[0][:len(files.Disks[0])-1]...)
	return v.VMM.Restore(ctx, req, files)
}

func (v seeker) Branch(ctx context.Context, req vmmproto.Branch, files vmmclient.BranchFiles) (vmmproto.BranchResult,
	error) {
	v.move("branch", files.Frozen...)
	return v.VMM.Branch(ctx, req, files)
}

func (v seeker) move(what string, files ...*os.File) {
	const moved = 4097
	for _, f := range files {
		*v.seen++
		own := fmt.Sprint(f.Fd())
		path, err := os.Readlink("/proc/self/fd/" + own)
		if err != nil {
			v.t.Error(err)
		}
		if _, err := f.Seek(moved, io.SeekStart); err != nil {
			v.t.Error(err)
		}
		all, err := os.ReadDir("/proc/self/fdinfo")
		if err != nil {
			v.t.Error(err)
		}
		ofDaemon := 0
		for _, fd := range all {
			if name, err := os.Readlink("/proc/self/fd/" + fd.Name()); err != nil || name != path || fd.Name() == own {
				continue
			}
			info, err := os.ReadFile("/proc/self/fdinfo/" + fd.Name())
			var at, flags int64
			if _, err2 := fmt.Sscanf(string(info), "pos: %d\nflags: %o", &at, &flags); err != nil || err2 != nil {
				v.t.Errorf("%s: %v, %v", info, err, err2)
			}
			if at == moved {
				v.t.Errorf("%s: a VMM has moved the daemon's offset in %s", what, path)
			} else if flags&unix.O_ACCMODE == unix.O_RDONLY {
				ofDaemon++
			}
		}
		// A disk layer is exempt: a bake opens it only for its VMM, and does not share it later.
		if ofDaemon == 0 && filepath.Base(path) != snapshot.DiskLayerFile {
			v.t.Errorf("%s: the VMM has the daemon's own descriptor of %s", what, path)
		}
	}
}

// VMMs share no open file description with the daemon or with each other. If they shared one, a
// compromised VMM could block in a system call that changes the offset, and every process that uses
// the same offset would wait.
func TestVMMsHaveDescriptionsOfTheirOwn(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	seen := 0
	w.vmms.Wrap = func(v *vmfake.VMM) vmpool.VMM { return seeker{v, t, &seen} }
	w.boots(t)
	id := w.source(t)
	w.branch(t, id, "b", vm.BranchLive)
	w.branch(t, id, "d", vm.BranchDisk)
	if _, err := w.Fork(t.Context(), ForkRequest{Tag: "d", N: 1}); err != nil {
		t.Fatal(err)
	}
	if seen < 6 {
		t.Errorf("VMMs have been given %d files", seen)
	}
	w.KillAll()
	w.checkClean(t)
}
