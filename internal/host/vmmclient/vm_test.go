package vmmclient_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/format/console"
	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/jail"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
	"github.com/forkd/forkd/internal/vmtest"
)

const mib = 1 << 20

// testVM is a VM with its private disk top.
type testVM struct {
	*vmmclient.VMM
	disk  vmmproto.Disk
	files []*os.File // base image, layers, top
	agent *agentclient.Client
}

func spawn(t *testing.T, a *vmtest.Assets, shape vm.Shape) *vmmclient.VMM {
	t.Helper()
	jails, err := jail.New(jail.Options{})
	if err != nil {
		t.Fatal(err)
	}
	v, err := vmmclient.Spawn(context.Background(), vmmclient.Config{
		Bin: a.VMM, Dir: filepath.Join(vmtest.ShortDir(t), "vm"), ID: t.Name(), Shape: shape, Jail: jails,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("console of %s:\n%s\nexit: %+v", v.Dir(), vmtest.LastLines(consoleOf(v), 40), v.Exit())
		}
		if err := v.Kill(); err != nil {
			t.Error(err)
		}
	})
	return v
}

// consoleOf returns the latest output on the console of v, or nothing if the console cannot be
// read.
func consoleOf(v *vmmclient.VMM) []byte {
	f, err := vmmclient.OpenConsole(v.Dir())
	if err != nil {
		return nil
	}
	defer f.Close()
	text, _ := console.Tail(f)
	return text.Bytes
}

func newTop(t *testing.T, size uint64) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), fmt.Sprintf("top%d", time.Now().UnixNano())))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := disklayer.Format(f, size); err != nil {
		t.Fatal(err)
	}
	return f
}

func genID() (id [16]byte) {
	_, _ = rand.Read(id[:])
	return id
}

// boot starts a VM and waits for its agent.
func boot(t *testing.T, a *vmtest.Assets, kernelPath, initrdPath, image string, shape vm.Shape) *testVM {
	t.Helper()
	v := &testVM{VMM: spawn(t, a, shape)}
	base, err := os.Open(filepath.Join(a.Images[image], "rootfs.ext4"))
	if err != nil {
		t.Fatal(err)
	}
	st, err := base.Stat()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { base.Close() })
	v.disk = vmmproto.Disk{SizeBytes: uint64(st.Size())}
	v.files = []*os.File{base, newTop(t, v.disk.SizeBytes)}
	kernel, err := os.Open(kernelPath)
	if err != nil {
		t.Fatal(err)
	}
	defer kernel.Close()
	initrd, err := os.Open(initrdPath)
	if err != nil {
		t.Fatal(err)
	}
	defer initrd.Close()
	start := time.Now()
	err = v.Boot(t.Context(), vmmproto.Boot{
		Cmdline: vmtest.Cmdline(), Disks: []vmmproto.Disk{v.disk}, VMGenID: genID(),
	}, vmmclient.BootFiles{Kernel: kernel, Initrd: initrd, Disks: [][]*os.File{v.files}})
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitReady(t, v)
	t.Logf("ready after %v", time.Since(start).Round(time.Millisecond))
	return v
}

func waitReady(t *testing.T, v *testVM) {
	t.Helper()
	select {
	case c, ok := <-v.Conns():
		if !ok {
			<-v.Done()
			t.Fatalf("the VM ended: %+v", v.Exit())
		}
		defer c.Conn.Close()
		var ready agentproto.Ready
		if err := json.NewDecoder(c.Conn).Decode(&ready); err != nil || c.Port != agentproto.ReadyPort {
			t.Fatalf("port %d: %v", c.Port, err)
		}
		t.Logf("agent: %+v", ready)
	case <-time.After(2 * time.Minute):
		t.Fatal("the agent did not become ready")
	}
	v.agent = agentclient.New(agentclient.DialUnix(filepath.Join(v.Dir(), vmmclient.VsockSocket)))
}

func (v *testVM) sh(t *testing.T, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := v.agent.Exec(ctx, agentclient.ExecRequest{Args: []string{"/bin/sh", "-c", script},
		Timeout: 30 * time.Second})
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		t.Fatalf("%s: %v (stderr %q)", script, err, r.Stderr)
	}
	return strings.TrimSpace(string(r.Stdout))
}

// saved is a snapshot whose files are on tmpfs.
type saved struct {
	shape  vm.Shape
	result vmmproto.SaveResult
	state  *os.File
	layer  *os.File
	layers []*os.File // the memory layers, base first; the last is the field layer
	disk   vmmproto.Disk
	disks  []*os.File // the disk as it was saved: base image and layers

	firstWrites []vm.Range // pages that the first child has written; passed to later children
}

// save pauses v for good and makes a snapshot of it.
func save(t *testing.T, v *testVM, shape vm.Shape) *saved {
	t.Helper()
	if err := v.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	return branch(t, v, &saved{shape: shape}, vm.BranchDiff)
}

// fork starts a child of s and waits until its agent has confirmed.
func fork(t *testing.T, a *vmtest.Assets, s *saved, hostname string) *testVM {
	t.Helper()
	v := &testVM{VMM: spawn(t, a, s.shape), disk: s.disk}
	v.files = append(append([]*os.File(nil), s.disks...), newTop(t, s.disk.SizeBytes))
	v.agent = agentclient.New(agentclient.DialUnix(filepath.Join(v.Dir(), vmmclient.VsockSocket)))
	restore(t, v, s, hostname)
	return v
}

// forReading opens files again for a VMM, which may only read them.
func forReading(t *testing.T, files ...*os.File) (own []*os.File) {
	t.Helper()
	for _, f := range files {
		again, err := disklayer.Reopen(f)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { again.Close() })
		own = append(own, again)
	}
	return own
}

// restore restores s in v and waits until the agent has confirmed. The files of v must be set.
func restore(t *testing.T, v *testVM, s *saved, hostname string) {
	t.Helper()
	top := len(v.files) - 1
	disk := append(forReading(t, v.files[:top]...), v.files[top])
	start := time.Now()
	times, err := v.Restore(t.Context(), vmmproto.Restore{
		Extents: s.result.Extents, Disks: []vmmproto.Disk{s.disk}, VMGenID: genID(), Resume: true,
		FirstWrites: s.firstWrites,
	}, vmmclient.RestoreFiles{State: forReading(t, s.state)[0], Layers: forReading(t, s.layers...),
		Disks: [][]*os.File{disk}})
	if err != nil {
		t.Fatal(err)
	}
	entered := time.Since(start)
	entropy := make([]byte, 32)
	_, _ = rand.Read(entropy)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := v.agent.Forked(ctx, agentproto.Forked{
		Entropy: entropy, RealtimeNanos: time.Now().UnixNano(), Hostname: hostname,
	}); err != nil {
		t.Fatal(err)
	}
	stats, err := v.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.firstWrites == nil {
		if s.firstWrites, err = v.Written(t.Context()); err != nil || len(s.firstWrites) == 0 {
			t.Fatalf("written: %v, %v", s.firstWrites, err)
		}
	}
	t.Logf("%s: entered %v, confirmed %v, map %v state %v run %v, %d KiB dirty", hostname, entered, time.Since(start),
		times.Map, times.State, times.Run, stats.GuestDirtyBytes>>10)
}

func TestBootForkExec(t *testing.T) {
	a := vmtest.Load(t)
	shape := vm.Shape{MemoryBytes: 256 * mib, VCPUs: 1, Template: vmtest.Template()}
	parent := boot(t, a, a.Cloud.VMLinux, a.Cloud.Initrd, "base", shape)
	if got := parent.sh(t, "echo hello > /root/file; cat /root/file; uname -r"); !strings.Contains(got, "hello") {
		t.Fatalf("parent: %q", got)
	}
	const taint = 13 // TAINT_UNSIGNED_MODULE
	if got := parent.sh(t, fmt.Sprintf("echo $(($(cat /proc/sys/kernel/tainted) >> %d & 1))", taint)); got != "0" {
		t.Errorf("the guest's kernel has found modules without signatures: %q", got)
	}
	const number = "dd if=/dev/hwrng bs=16 count=1 2>/dev/null | od -An -tx1"
	parent.sh(t, number) // after this, the kernel has used up the random bytes that it fetched in advance
	s := save(t, parent, shape)
	hosts, numbers := map[string]bool{}, map[string]bool{}
	for i := range 4 {
		child := fork(t, a, s, fmt.Sprintf("child-%d", i))
		numbers[child.sh(t, number)] = true
		hosts[child.sh(t, "cat /root/file; hostname; head -c 8 /dev/urandom | od -An -tx1; date +%s")] = true
	}
	t.Log(hosts)
	if len(hosts) != 4 {
		t.Fatalf("children are not distinct: %v", hosts)
	}
	if len(numbers) != 4 {
		t.Errorf("children get the same from the random number device: %v", numbers)
	}
}

// The kernel of a child notices the new generation id and reseeds by itself, without the agent.
func TestKernelNoticesItsFork(t *testing.T) {
	a := vmtest.Load(t)
	const count = "dmesg | grep -c 'reseeded due to virtual machine fork'"
	for _, kernel := range []vmtest.Kernel{a.Minimal, a.Cloud} {
		t.Run(kernel.Name, func(t *testing.T) {
			shape := vm.Shape{MemoryBytes: 256 * mib, VCPUs: 1, Template: vmtest.Template()}
			parent := boot(t, a, kernel.VMLinux, kernel.Initrd, "base", shape)
			if got := parent.sh(t, count+" || true"); got != "0" {
				t.Fatalf("before a fork: %q", got)
			}
			child := fork(t, a, save(t, parent, shape), "child")
			// The kernel reseeds in another thread, possibly after the agent has confirmed.
			if got := child.sh(t, "until "+count+"; do sleep 0.1; done"); !strings.HasSuffix(got, "1") {
				t.Errorf("after it: %q", got)
			}
		})
	}
}

// A guest may have sockets of connections that were open when it was saved. Its children must be
// reachable nevertheless.
func TestChildrenOfAGuestWithConnections(t *testing.T) {
	a := vmtest.Load(t)
	shape := vm.Shape{MemoryBytes: 256 * mib, VCPUs: 1, Template: vmtest.Template()}
	parent := boot(t, a, a.Minimal.VMLinux, a.Minimal.Initrd, "base", shape)
	dial := agentclient.DialUnix(filepath.Join(parent.Dir(), vmmclient.VsockSocket))
	for range 16 {
		conn, err := dial(t.Context(), agentproto.ControlPort)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := parent.agent.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s := save(t, parent, shape)
	for i := range 3 {
		child := fork(t, a, s, fmt.Sprintf("child-%d", i))
		for range 8 {
			if _, err := child.agent.Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A panic of the kernel is reported as a panic, not as a reset. Here the kernel panics because it
// finds no program to run.
func TestPanicIsReported(t *testing.T) {
	a := vmtest.Load(t)
	for name, path := range map[string]string{"minimal": a.Minimal.VMLinux, "cloud": a.Cloud.BzImage} {
		v := spawn(t, a, vm.Shape{MemoryBytes: 256 * mib, VCPUs: 1, Template: vmtest.Template()})
		kernel, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		err = v.Boot(t.Context(), vmmproto.Boot{Cmdline: vmtest.Cmdline(), VMGenID: genID()},
			vmmclient.BootFiles{Kernel: kernel})
		_ = kernel.Close()
		if err == nil {
			err = v.Resume(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		<-v.Done()
		if e := v.Exit(); e.Reason != vm.ExitPanic || !strings.Contains(e.Detail, "panic - not syncing: VFS") {
			t.Errorf("%s: exit %v, %q, want a panic for want of a root file system", name, e.Reason, e.Detail)
		}
	}
}

// Every form of kernel file boots, with several vCPUs, and with memory below and above the device
// hole.
func TestBootMatrix(t *testing.T) {
	a := vmtest.Load(t)
	for _, c := range []struct {
		name           string
		kernel, initrd string
		shape          vm.Shape
	}{
		{"minimal ELF", a.Minimal.VMLinux, a.Minimal.Initrd, vm.Shape{MemoryBytes: 128 * mib, VCPUs: 1}},
		{"minimal bzImage, 2 vCPUs", a.Minimal.BzImage, a.Minimal.Initrd, vm.Shape{MemoryBytes: 256 * mib, VCPUs: 2}},
		{"cloud bzImage, 3.5 GiB", a.Cloud.BzImage, a.Cloud.Initrd, vm.Shape{MemoryBytes: 3584 * mib, VCPUs: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.shape.Template = vmtest.Template()
			parent := boot(t, a, c.kernel, c.initrd, "base", c.shape)
			if got, want := parent.sh(t, "nproc"), fmt.Sprint(c.shape.VCPUs); got != want {
				t.Errorf("nproc = %s, want %s", got, want)
			}
			var memKiB uint64
			if _, err := fmt.Sscan(parent.sh(t, "sed -n 's/MemTotal: *//p' /proc/meminfo"), &memKiB); err != nil ||
				memKiB < c.shape.MemoryBytes>>10*8/10 {
				t.Errorf("the guest sees %d KiB of %d MiB, %v", memKiB, c.shape.MemoryBytes/mib, err)
			}
			if got := parent.sh(t, "cat /sys/devices/system/clocksource/clocksource0/current_clocksource"); got != "kvm-clock" {
				t.Errorf("clocksource %s", got)
			}
			parent.sh(t, "i=0; while [ $i -lt 50 ]; do i=$((i+1)); (echo $i > /tmp/f$i) & done; wait")
			s := save(t, parent, c.shape)
			child := fork(t, a, s, "child")
			if got := child.sh(t, "ls /tmp/f* | wc -l; nproc"); got != fmt.Sprintf("50\n%d", c.shape.VCPUs) {
				t.Errorf("child: %q", got)
			}
		})
	}
}
