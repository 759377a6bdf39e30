package integration_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/test/rig"
	"github.com/forkd/forkd/test/soak"
)

// ramSize is a mount option of the tmpfs for memory layers.
const ramSize = "size=700m"

// Requests to freeze and thaw a file system (linux/fs.h), which x/sys does not define. Writes to a
// frozen file system wait.
const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
)

// harm causes faults, one after the other, while the clients work. It causes each kind at least
// once.
func (x *soaking) harm(until time.Time) {
	x.t.Helper()
	faults := x.allFaults()
	for n := 0; time.Now().Before(until) || n < len(soak.Kinds()); n++ {
		x.pass(6)
		faults.Draw()()
		x.write()
	}
}

// pass lets the clients work for a random time of up to the given number of seconds.
func (x *soaking) pass(seconds int) {
	time.Sleep(time.Duration(x.rng.IntN(seconds*1000)) * time.Millisecond)
}

// allFaults returns a shuffled deck of the faults.
func (x *soaking) allFaults() *rig.Deck[func()] {
	return rig.NewDeck(x.rng, rig.Card[func()]{Weight: 3, Do: x.killDaemon}, rig.Card[func()]{Weight: 1, Do: x.killNet},
		rig.Card[func()]{Weight: 4, Do: x.killVMM}, rig.Card[func()]{Weight: 2, Do: x.fillDisk},
		rig.Card[func()]{Weight: 1, Do: x.fillRAM}, rig.Card[func()]{Weight: 2, Do: x.stallDisk},
		rig.Card[func()]{Weight: 1, Do: x.killBoth})
}

// killDaemon kills the daemon and starts it again. Afterwards, only sandboxes and snapshots that were
// acknowledged to clients may exist.
func (x *soaking) killDaemon() {
	x.t.Helper()
	x.restart()
	x.audit()
}

func (x *soaking) restart() {
	x.t.Helper()
	x.report.Say("kill the daemon")
	end := x.faults.Begin(soak.KillDaemon, "")
	x.d.crash(x.t)
	x.d.launch(x.t)
	end()
}

// killNet kills forkd-net, and waits until the daemon has started it again.
func (x *soaking) killNet() {
	x.t.Helper()
	x.report.Say("kill forkd-net")
	old := x.d.processes(x.t, "forkd-net")
	end := x.faults.Begin(soak.KillNet, "")
	for _, pid := range old {
		x.kill(pid)
	}
	x.newNet(old)
	end()
}

func (x *soaking) newNet(old []string) {
	x.t.Helper()
	eventually(x.t, quietLimit, func() error {
		now := x.d.processes(x.t, "forkd-net")
		if len(now) != 1 || len(old) > 0 && now[0] == old[0] {
			return fmt.Errorf("forkd-net is %v, was %v", now, old)
		}
		return nil
	})
}

// killBoth kills forkd-net and the daemon at the same time.
func (x *soaking) killBoth() {
	x.t.Helper()
	old := x.d.processes(x.t, "forkd-net")
	endNet := x.faults.Begin(soak.KillNet, "")
	for _, pid := range old {
		x.kill(pid)
	}
	x.restart()
	x.newNet(old)
	endNet()
	x.audit()
}

// kill kills a process, which may have exited already.
func (x *soaking) kill(pid string) {
	x.t.Helper()
	n, err := strconv.Atoi(pid)
	if err == nil {
		err = syscall.Kill(n, syscall.SIGKILL)
	}
	if err != nil && !errors.Is(err, syscall.ESRCH) {
		x.t.Fatal(err)
	}
}

// killVMM kills a random VMM. The VMM may run a sandbox, be in the middle of a fork, or wait in the
// pool. killVMM then waits until the daemon has removed the VMM's directory.
func (x *soaking) killVMM() {
	x.t.Helper()
	dirs, err := filepath.Glob(filepath.Join(x.d.run, "vm", "*", "vmm.pid"))
	if err != nil || len(dirs) == 0 {
		return
	}
	record := dirs[x.rng.IntN(len(dirs))]
	p, err := os.ReadFile(record)
	fields := strings.Fields(string(p))
	if err != nil || len(fields) != 2 {
		return // the VMM has just exited, or has not written its files yet
	}
	id := filepath.Base(filepath.Dir(record))
	x.report.Say("kill the VMM of %s", id)
	end := x.faults.Begin(soak.KillVMM, id)
	x.kill(fields[0])
	eventually(x.t, quietLimit, func() error {
		if now, err := os.ReadFile(record); err == nil && string(now) == string(p) {
			return fmt.Errorf("the daemon has not noticed the end of process %s", fields[0])
		}
		return nil
	})
	end()
}

// fillDisk leaves little room on the disk of the state directory for a while.
func (x *soaking) fillDisk() {
	x.t.Helper()
	leave := uint64(x.rng.IntN(48)) << 20
	x.report.Say("fill the disk up to %d MiB", leave>>20)
	end := x.faults.Begin(soak.FillDisk, "")
	filler := filepath.Join(x.disk, "filler")
	f, err := os.Create(filler)
	if err == nil {
		err = unix.Fallocate(int(f.Fd()), 0, 0, int64(free(x.t, x.disk)-min(leave, free(x.t, x.disk)/2)))
		f.Close()
	}
	if err != nil && !errors.Is(err, syscall.ENOSPC) { // if another write has filled the disk, the effect is the same
		x.t.Fatal(err)
	}
	restarted := x.meanwhile()
	if err := os.Remove(filler); err != nil {
		x.t.Fatal(err)
	}
	x.unblocked()
	end()
	if restarted {
		x.audit()
	}
}

// fillRAM leaves no room for memory layers for a while.
func (x *soaking) fillRAM() {
	x.t.Helper()
	leave := uint64(x.rng.IntN(4)) << 20
	x.report.Say("fill the RAM of layers up to %d MiB", leave>>20)
	end := x.faults.Begin(soak.FillRAM, "")
	room(x.t, x.d.ram, leave)
	restarted := x.meanwhile()
	remount(x.t, x.d.ram, ramSize)
	end()
	if restarted {
		x.audit()
	}
}

// stallDisk blocks writes to the disk of the state directory for some seconds.
func (x *soaking) stallDisk() {
	x.t.Helper()
	long := time.Second + time.Duration(x.rng.IntN(6000))*time.Millisecond
	x.report.Say("stall the disk for %v", long)
	end := x.faults.Begin(soak.StallDisk, "")
	dir, err := os.Open(x.disk)
	if err == nil {
		defer dir.Close()
		err = unix.IoctlSetInt(int(dir.Fd()), fiFreeze, 0)
	}
	if err != nil {
		x.t.Fatalf("freeze %s: %v", x.disk, err)
	}
	// The daemon may be killed in this time, but cannot exit before its writes are done.
	thawed := make(chan error, 1)
	time.AfterFunc(long, func() { thawed <- unix.IoctlSetInt(int(dir.Fd()), fiThaw, 0) })
	restarted := x.meanwhile()
	if err := <-thawed; err != nil {
		x.t.Fatalf("thaw %s: %v", x.disk, err)
	}
	end()
	if restarted {
		x.audit()
	}
}

// meanwhile() lets the clients work during a fault. Sometimes it causes another fault.
func (x *soaking) meanwhile() (restarted bool) {
	x.t.Helper()
	x.pass(5)
	switch x.rng.IntN(4) {
	case 0:
		x.restart()
		restarted = true
	case 1:
		x.killVMM()
	}
	x.pass(3)
	return restarted
}

// unblocked waits until no sandbox is paused for lack of disk space.
func (x *soaking) unblocked() {
	x.t.Helper()
	eventually(x.t, quietLimit, func() error {
		list, err := x.d.Sandboxes(x.d.ctx(x.t, stepLimit))
		for _, s := range list {
			if s.DiskFull {
				err = errors.Join(err, fmt.Errorf("sandbox %s waits for room: %+v", s.ID, s))
			}
		}
		return err
	})
}

// mountDisk mounts a copy of a file system image until the test has ended.
func mountDisk(t *testing.T, image, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	file := dir + ".img"
	if err := copySparse(image, file); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(file); err != nil {
			t.Error(err)
		}
	})
	device, release, err := attach(file)
	if err != nil {
		t.Fatalf("make a disk of %s (needs root and the module loop): %v", file, err)
	}
	defer release()
	if err := unix.Mount(device, dir, "ext4", unix.MS_NOATIME, "discard"); err != nil {
		t.Fatalf("mount %s: %v", device, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
}

// attach makes a loop device for a file. The device disappears when it has been released and is no
// longer mounted.
func attach(file string) (device string, release func() error, err error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return "", nil, err
	}
	defer control.Close()
	n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return "", nil, fmt.Errorf("find a free loop device: %w", err)
	}
	back, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return "", nil, err
	}
	defer back.Close()
	loop, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
	if err != nil {
		return "", nil, err
	}
	err = unix.IoctlLoopConfigure(int(loop.Fd()), &unix.LoopConfig{Fd: uint32(back.Fd()),
		Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}})
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("configure %s: %w", loop.Name(), err), loop.Close())
	}
	return loop.Name(), loop.Close, nil
}
