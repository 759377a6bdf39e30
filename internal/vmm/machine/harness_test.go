package machine_test

import (
	"bufio"
	"crypto/rand"
	"debug/elf"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/build/initramfs"
	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/kvm"
	"github.com/forkd/forkd/internal/vmm/machine"
	"github.com/forkd/forkd/internal/vmtest"
)

const (
	mib      = 1 << 20
	diskSize = 8 * mib
	patience = 2 * time.Minute // maximum time for an answer of a guest; long, because emulated hosts are slow
)

// host creates machines for the guest of these tests.
type host struct {
	dir    string // on tmpfs, because memory layers must support write protection
	tops   string // directory for new disk tops
	kernel string
	initrd string
	base   string // path of the raw disk image
	slots  int    // number of volume slots of new guests
	shape  vm.Shape
}

func newHost(t *testing.T, vcpus int) *host {
	t.Helper()
	assets := vmtest.Load(t)
	dir, err := os.MkdirTemp("/dev/shm", "fkt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	h := &host{dir: dir, tops: dir, kernel: assets.Minimal.VMLinux, initrd: filepath.Join(dir, "initrd"),
		base: filepath.Join(dir, "base"), shape: vm.Shape{MemoryBytes: 192 * mib, VCPUs: uint32(vcpus),
			Template: vmtest.Template()}}
	writeInitrd(t, h.initrd)
	if err := os.WriteFile(h.base, make([]byte, diskSize), 0o600); err != nil {
		t.Fatal(err)
	}
	return h
}

// writeInitrd makes an initramfs with this test binary. If the binary has shared libraries, as with
// the race detector, the initramfs also contains these libraries.
func writeInitrd(t *testing.T, path string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := initramfs.NewWriter(f)
	add := func(name, from string) {
		p, err := os.ReadFile(from)
		if err == nil {
			err = w.File(name, 0o755, p)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	add("init", exe)
	for _, lib := range libraries(t, exe) {
		add(lib, lib)
	}
	_ = w.Dir("proc", 0o755)
	_ = w.CharDevice("dev/console", 0o600, 5, 1)
	_ = w.CharDevice("dev/null", 0o666, 1, 3)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// libraries returns the interpreter and the shared libraries of a program. A static program has
// none.
func libraries(t *testing.T, exe string) []string {
	t.Helper()
	f, err := elf.Open(exe)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []string
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			name := make([]byte, p.Filesz-1)
			if _, err := p.ReadAt(name, 0); err != nil {
				t.Fatal(err)
			}
			out = append(out, string(name))
		}
	}
	names, err := f.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		i := slices.IndexFunc([]string{"/lib/x86_64-linux-gnu/", "/lib64/", "/usr/lib/"}, func(dir string) bool {
			_, err := os.Stat(dir + name)
			return err == nil
		})
		if i < 0 {
			t.Fatalf("library %s is not found", name)
		}
		out = append(out, []string{"/lib/x86_64-linux-gnu/", "/lib64/", "/usr/lib/"}[i]+name)
	}
	return out
}

// testVM is a machine with its disk and its streams.
type testVM struct {
	*machine.Machine
	host    *host
	socket  string
	files   []string // paths of the disk's files: base image, layers, top
	volumes volumes
	serial  uint64 // serial of the latest branch
	dialed  chan uint32
	exited  chan vm.Exit
	copied  chan vmmproto.Branched
	stalled chan struct{}
	console *console
}

// volumes are the paths of the files of each volume slot: base image, layers, top. An empty slot has
// none. All volumes have the size of the disk.
type volumes [][]string

// console stores the guest's output.
type console struct {
	mu   sync.Mutex
	text []byte
}

func (c *console) WriteByte(b byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text = append(c.text, b)
	return nil
}

func (h *host) newVM(t *testing.T) *testVM {
	t.Helper()
	v := &testVM{host: h, socket: filepath.Join(vmtest.ShortDir(t), "vsock"), dialed: make(chan uint32, 8),
		exited: make(chan vm.Exit, 1), copied: make(chan vmmproto.Branched, 1),
		stalled: make(chan struct{}, 8), console: &console{}}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: v.socket})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	file, err := listener.File()
	_ = listener.Close()
	if err != nil {
		t.Fatal(err)
	}
	sys, err := kvm.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sys.Close() })
	tracker, err := guestmem.NewTracker("/proc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tracker.Close() })
	v.Machine, err = machine.New(machine.Config{KVM: sys, Tracker: tracker, Shape: h.shape, Console: v.console,
		VsockListener: file,
		GuestConn: func(port uint32) (int, error) {
			select {
			case v.dialed <- port:
			default: // do not block the device, because a hostile guest opens streams endlessly
				return -1, errors.New("no more streams are taken")
			}
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			if err != nil {
				return -1, err
			}
			return fds[1], unix.Close(fds[0])
		},
		Exited:  func(e vm.Exit) { v.exited <- e },
		Stalled: func() { v.stalled <- struct{}{} },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("devices: %v", v.DeviceErrors())
		}
		if err := v.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("console:\n%s", vmtest.LastLines(v.console.text, 40))
			select {
			case e := <-v.exited:
				t.Logf("the machine stopped: %v %s", e.Reason, e.Detail)
			default:
			}
		}
	})
	return v
}

// newTop creates an empty writable disk layer.
func (h *host) newTop(t *testing.T) string {
	t.Helper()
	f, err := os.CreateTemp(h.tops, "top")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := disklayer.Format(f, diskSize); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

func open(t *testing.T, path string, flags int) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// disks opens the files of a machine's disk and of its volumes. The machine will own them. The last
// file of each is writable.
func disks(t *testing.T, files []string, volumes ...[]string) []machine.Disk {
	t.Helper()
	all := []machine.Disk{{SizeBytes: diskSize}}
	for _, v := range volumes {
		d := machine.Disk{Volume: true}
		if len(v) > 0 {
			d.SizeBytes = diskSize
		}
		all = append(all, d)
	}
	for n, names := range append([][]string{files}, volumes...) {
		for i, name := range names {
			flags := os.O_RDONLY
			if i == len(names)-1 {
				flags = os.O_RDWR
			}
			all[n].Layers = append(all[n].Layers, open(t, name, flags))
		}
	}
	return all
}

// withTops returns the files of volumes with a new top for each volume.
func (v volumes) withTops(t *testing.T, h *host) (with volumes) {
	t.Helper()
	for _, files := range v {
		if len(files) > 0 {
			files = append(slices.Clone(files), h.newTop(t))
		}
		with = append(with, files)
	}
	return with
}

func generation() (id [16]byte) {
	_, _ = rand.Read(id[:])
	return id
}

// boot starts a guest and waits until it accepts commands.
func (h *host) boot(t *testing.T) *testVM {
	t.Helper()
	v := h.newVM(t)
	v.files, v.volumes = []string{h.base, h.newTop(t)}, make(volumes, h.slots)
	kernel, initrd := open(t, h.kernel, os.O_RDONLY), open(t, h.initrd, os.O_RDONLY)
	defer kernel.Close()
	defer initrd.Close()
	if err := v.Boot(machine.BootConfig{Kernel: kernel, Initrd: initrd, Cmdline: vmtest.Cmdline(guestEnv + "=1"),
		Disks: disks(t, v.files, v.volumes...), VMGenID: generation()}); err != nil {
		t.Fatal(err)
	}
	if err := v.Resume(); err != nil {
		t.Fatal(err)
	}
	v.wantDial(t, readyPort)
	return v
}

// wantDial waits until the guest has opened a stream to a port of the host.
func (v *testVM) wantDial(t *testing.T, port uint32) {
	t.Helper()
	select {
	case got := <-v.dialed:
		if got != port {
			t.Fatalf("the guest dialed port %d, want %d", got, port)
		}
	case e := <-v.exited:
		t.Fatalf("the guest stopped: %v %s", e.Reason, e.Detail)
	case <-time.After(patience):
		t.Fatalf("the guest did not dial port %d", port)
	}
}

// stream is a connection to the guest.
type stream struct {
	net.Conn
	r *bufio.Reader
}

func (v *testVM) dial(t *testing.T) *stream {
	t.Helper()
	c, err := net.Dial("unix", v.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	s := &stream{c, bufio.NewReader(c)}
	fmt.Fprintf(c, "CONNECT %d\n", guestPort)
	if line, err := s.r.ReadString('\n'); err != nil || !strings.HasPrefix(line, "OK ") {
		t.Fatalf("connect to the guest: %q, %v", line, err)
	}
	return s
}

func (s *stream) call(t *testing.T, format string, args ...any) string {
	t.Helper()
	command := fmt.Sprintf(format, args...)
	fmt.Fprintln(s, command)
	line, err := s.r.ReadString('\n')
	if err != nil || strings.HasPrefix(line, "error: ") {
		t.Fatalf("guest: %s: %q, %v", command, line, err)
	}
	return strings.TrimSuffix(line, "\n")
}

// call sends one command to the guest on a new stream.
func (v *testVM) call(t *testing.T, format string, args ...any) string {
	t.Helper()
	s := v.dial(t)
	defer s.Close()
	return s.call(t, format, args...)
}
