package machine_test

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/vmm/regtest"
)

// The guest of these tests is the test binary, which runs as PID 1 of a minimal kernel. There is no
// distribution, no agent, and no file system except the initramfs. So the tests depend only on the
// machine.

const (
	guestEnv    = "FORKD_TEST_GUEST" // variable on the kernel command line; the kernel passes it to PID 1
	guestPort   = 1024               // port on which the guest accepts commands, one per line
	readyPort   = 7                  // port that the guest connects to when it is ready
	guestDisk   = "/dev/vda"
	diskBlock   = 4096
	guestSample = 16 // number of random bytes in a response
)

func TestMain(m *testing.M) {
	if os.Getpid() == 1 && os.Getenv(guestEnv) != "" {
		runGuest()
	}
	// Lock this goroutine to the first thread of the process, so that no vCPU runs on this thread.
	// The first thread does not exit with its goroutine, so it would keep the low priority.
	runtime.LockOSThread()
	os.Exit(m.Run())
}

// guest is the state of the test program in the VM. The tests on the host know what the guest's
// memory must contain.
type guest struct {
	mu      sync.Mutex
	memory  []byte
	streams atomic.Int64 // number of open streams
	ticks   []atomic.Uint64
	broken  atomic.Pointer[string] // the first wrong result of a worker
	holding chan error             // receives, for each CPU, the result of the thread that holds registers
	signal  regtest.Signal         // shared with the threads that hold registers
	packets int                    // socket for whole frames
}

// runGuest never returns. When PID 1 exits, the kernel panics and the machine reports a reset.
func runGuest() {
	debug.SetGCPercent(-1) // only the tests may change pages
	n := runtime.NumCPU()
	runtime.GOMAXPROCS(2*n + 1) // other goroutines must run while a thread on each CPU holds registers
	g := &guest{ticks: make([]atomic.Uint64, n), holding: make(chan error, n)}
	if err := g.serve(); err != nil {
		fmt.Printf("guest: %v\n", err)
	}
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func (g *guest) serve() error {
	for _, m := range [][2]string{{"devtmpfs", "/dev"}, {"proc", "/proc"}} {
		if err := unix.Mount(m[0], m[1], m[0], 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m[1], err)
		}
	}
	listener, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("vsock: %w", err)
	}
	err = errors.Join(unix.Bind(listener, &unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: guestPort}),
		unix.Listen(listener, 64))
	if err != nil {
		return fmt.Errorf("vsock: %w", err)
	}
	for cpu := range g.ticks {
		go g.work(cpu)
	}
	if err := dialHost(readyPort); err != nil {
		return fmt.Errorf("dial the host: %w", err)
	}
	for {
		fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
		if err != nil {
			continue // the stream ended before it was accepted, as can happen in a restored guest
		}
		g.streams.Add(1)
		go g.talk(os.NewFile(uintptr(fd), "stream"))
	}
}

// talk executes the commands that arrive on one stream, until the stream ends.
func (g *guest) talk(f *os.File) {
	defer g.streams.Add(-1)
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		answer, err := g.command(strings.Fields(lines.Text()))
		if err != nil {
			answer = "error: " + err.Error()
		}
		if _, err := io.WriteString(f, answer+"\n"); err != nil {
			return
		}
	}
}

func (g *guest) command(words []string) (string, error) {
	var a, b, c uint64
	if len(words) == 0 {
		return "", errors.New("empty command")
	}
	for i, p := range []*uint64{&a, &b, &c} {
		if i+1 < len(words) {
			if _, err := fmt.Sscan(words[i+1], p); err != nil {
				return "", err
			}
		}
	}
	switch words[0] {
	case "fill":
		return "ok", g.fill(a, b)
	case "scribble":
		return "ok", g.scribble(a, b)
	case "sum":
		return g.sum(), nil
	case "write":
		return "ok", writeDisk(guestDisk, a, b, c)
	case "disk":
		return sumDisk(guestDisk, a, b)
	case "capacity":
		return capacity(volumeDevice(a))
	case "write-volume":
		return "ok", writeDisk(volumeDevice(a), 0, b, c)
	case "volume":
		return sumDisk(volumeDevice(a), 0, b)
	case "random":
		return random()
	case "streams":
		return fmt.Sprint(g.streams.Load()), nil
	case "ticks":
		return g.countTicks()
	case "hold":
		g.hold(a)
		return strings.Join(regtest.Held(), " "), nil
	case "held":
		return "ok", g.held()
	case "dial":
		return "ok", dialHost(uint32(a))
	case "net":
		return "ok", g.netUp()
	case "frames":
		return "ok", g.sendFrames(a, b)
	case "poweroff":
		return "", unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	}
	return "", fmt.Errorf("unknown command %q", words[0])
}

// fill allocates mib MiB of memory and fills it with bytes that depend on seed.
func (g *guest) fill(seed, mib uint64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var err error
	if g.memory == nil {
		g.memory, err = unix.Mmap(-1, 0, int(mib<<20), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	}
	if err == nil {
		copy(g.memory, pattern(seed, len(g.memory)))
	}
	return err
}

// scribble writes to n pages.
func (g *guest) scribble(seed, n uint64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return scribble(g.memory, seed, n)
}

// scribble writes to n pages of p. The guest and the host both call it, so the host knows the
// content of the guest's memory.
func scribble(p []byte, seed, n uint64) error {
	if len(p) == 0 {
		return errors.New("there is no memory yet")
	}
	r := rand.New(rand.NewPCG(seed, 1))
	for range n {
		p[r.IntN(len(p))] ^= byte(1 + r.IntN(255))
	}
	return nil
}

// pattern returns n bytes that depend on seed.
func pattern(seed uint64, n int) []byte {
	p := make([]byte, n)
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	_, _ = rand.NewChaCha8(key).Read(p)
	return p
}

func checksum(p []byte) string {
	return fmt.Sprintf("%08x", crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)))
}

func (g *guest) sum() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return checksum(g.memory)
}

// volumeDevice returns the block device of a volume slot. The first slot has the number 0.
func volumeDevice(slot uint64) string { return "/dev/vd" + string(rune('b'+slot%8)) }

// capacity returns the size of a block device in bytes.
func capacity(device string) (string, error) {
	f, err := os.Open(device)
	if err != nil {
		return "", err
	}
	defer f.Close()
	n, err := f.Seek(0, io.SeekEnd)
	return fmt.Sprint(n), err
}

// openDisk opens a disk for direct I/O. It also returns an aligned buffer of n bytes.
func openDisk(device string, flags int, n uint64) (*os.File, []byte, error) {
	if n == 0 || n%diskBlock != 0 {
		return nil, nil, fmt.Errorf("%d bytes are no whole blocks", n)
	}
	f, err := os.OpenFile(device, flags|unix.O_DIRECT, 0)
	if err != nil {
		return nil, nil, err
	}
	p, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	return f, p, err
}

// writeDisk writes n bytes, which depend on the seed, at an offset of a disk.
func writeDisk(device string, off, n, seed uint64) error {
	f, p, err := openDisk(device, os.O_WRONLY|unix.O_SYNC, n)
	if err != nil {
		return err
	}
	defer f.Close()
	copy(p, pattern(seed, len(p)))
	_, err = f.WriteAt(p, int64(off))
	return errors.Join(err, unix.Munmap(p))
}

// sumDisk returns the checksum of n bytes at an offset of a disk.
func sumDisk(device string, off, n uint64) (string, error) {
	f, p, err := openDisk(device, os.O_RDONLY, n)
	if err != nil {
		return "", err
	}
	defer f.Close()
	_, err = f.ReadAt(p, int64(off))
	sum := checksum(p)
	return sum, errors.Join(err, unix.Munmap(p))
}

// random reads from the random number device. It reads more than 128 bytes, because Linux may have
// fetched 128 bytes before the guest was saved.
func random() (string, error) {
	f, err := os.Open("/dev/hwrng")
	if err != nil {
		return "", err
	}
	defer f.Close()
	var p [128 + guestSample]byte
	_, err = io.ReadFull(f, p[:])
	return hex.EncodeToString(p[128:]), err
}

// dialHost opens a stream to the host. It closes the stream as soon as the host has accepted it.
func dialHost(port uint32) error {
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Connect(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_HOST, Port: port})
}

// work repeats a computation with a known result, on one CPU. A wrong result means that registers
// were lost in a save or a pause.
func (g *guest) work(cpu int) {
	if err := stayOn(cpu); err != nil {
		g.fail(fmt.Sprintf("worker %d: %v", cpu, err))
		return
	}
	want := iterate()
	for {
		if got := iterate(); got != want {
			g.fail(fmt.Sprintf("worker on CPU %d computed %v, want %v", cpu, got, want))
			return
		}
		g.ticks[cpu].Add(1)
		_ = unix.Nanosleep(&unix.Timespec{Nsec: 2e6}, nil)
	}
}

// stayOn binds the calling thread to one CPU.
func stayOn(cpu int) error {
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(cpu)
	return unix.SchedSetaffinity(0, &set)
}

// hold starts a thread on each CPU. Each thread fills its registers with values that it derives from
// seed, and keeps them until g.held() is called.
func (g *guest) hold(seed uint64) {
	g.signal.Held.Store(0)
	g.signal.LetGo.Store(0)
	for cpu := range g.ticks {
		go func() {
			err := stayOn(cpu)
			if err == nil {
				err = regtest.Hold(seed<<8|uint64(cpu), &g.signal)
			}
			g.holding <- err
		}()
	}
	for int(g.signal.Held.Load())+len(g.holding) < len(g.ticks) {
		_ = unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
	}
}

// held stops the threads that were started by hold. It returns an error that names the registers
// that have changed.
func (g *guest) held() error {
	g.signal.LetGo.Store(1)
	var errs []error
	for range g.ticks {
		errs = append(errs, <-g.holding)
	}
	return errors.Join(errs...)
}

// iterate computes with integer and floating-point registers.
func iterate() [2]uint64 {
	a, x := uint64(1), 0.3
	for range 5000 {
		a = a*6364136223846793005 + 1442695040888963407
		x = 3.7 * x * (1 - x)
	}
	return [2]uint64{a, uint64(x * (1 << 52))}
}

func (g *guest) fail(message string) { g.broken.CompareAndSwap(nil, &message) }

// countTicks returns how many computations each worker has made.
func (g *guest) countTicks() (string, error) {
	if message := g.broken.Load(); message != nil {
		return "", errors.New(*message)
	}
	var counts []string
	for i := range g.ticks {
		counts = append(counts, fmt.Sprint(g.ticks[i].Load()))
	}
	return strings.Join(counts, " "), nil
}
