package feeder

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/feed"
	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/jail"
	"github.com/forkd/forkd/internal/jail/posture"
	"github.com/forkd/forkd/internal/proto/feedproto"
)

func TestMain(m *testing.M) {
	if os.Args[0] == feed.Name {
		os.Exit(feed.Main())
	}
	code := m.Run()
	removeProgram()
	os.Exit(code)
}

var testProgram, removeProgram = posture.SharedProgram()

// rig is a forkd-feed process with one file, whose frames the test delivers.
type rig struct {
	*Feeder
	content []byte
	blob    *os.File // open for writing
	coded   []byte
	frames  *artifact.Frameset

	mu    sync.Mutex
	needs []uint32
	asked chan uint32
}

func newRig(t *testing.T) *rig { return newRigIn(t, nil) }

// newRigIn returns a process with a cgroup in the tree.
func newRigIn(t *testing.T, tree *cgroup.Tree) *rig {
	t.Helper()
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil || os.Geteuid() != 0 {
		t.Skipf("needs root and FUSE: %v", err)
	} else {
		f.Close()
	}
	r := &rig{content: make([]byte, 4<<20+100), asked: make(chan uint32, 100)}
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(r.content)
	clear(r.content[1<<20 : 2<<20]) // pages of zeros are in no frame
	e, err := artifact.NewEncoder()
	if err != nil {
		t.Fatal(err)
	}
	digester := snapshot.NewDigester(uint64(len(r.content)))
	if err := digester.Write(0, r.content); err != nil {
		t.Fatal(err)
	}
	var coded bytes.Buffer
	b, err := e.Encode(t.Context(), &coded, artifact.Part{Name: "memory.layer.0", Bytes: uint64(len(r.content)),
		Digest: digester.Sum()}, bytes.NewReader(r.content), func(at uint64) (uint64, uint64, error) {
		if at >= uint64(len(r.content)) {
			return 0, 0, io.EOF
		}
		return at, uint64(len(r.content)), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	r.coded = coded.Bytes()
	index := r.coded[b.Size-b.IndexBytes:]
	if r.frames, err = artifact.ParseFrames(index, b); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "blob")
	if r.blob, err = os.Create(path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.blob.Close() })
	if _, err := r.blob.WriteAt(index, b.Size-b.IndexBytes); err != nil {
		t.Fatal(err)
	}
	data, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer data.Close()
	bin, err := testProgram()
	if err != nil {
		t.Fatal(err)
	}
	jails, err := jail.New(jail.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r.Feeder, err = Program{Bin: bin, Jail: jails, Cgroups: tree}.Start([]File{{b, data}}, func(f feedproto.Frame) {
		r.mu.Lock()
		r.needs = append(r.needs, f.Frame)
		r.mu.Unlock()
		r.asked <- f.Frame
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// deliver writes a frame to the blob, and reports it to the process.
func (r *rig) deliver(t *testing.T, i uint32) {
	t.Helper()
	at, size := r.frames.Place(int(i))
	if _, err := r.blob.WriteAt(r.coded[at:at+size], at); err != nil {
		t.Fatal(err)
	}
	if err := r.Have(feedproto.Frame{Frame: i}); err != nil {
		t.Fatal(err)
	}
}

// follow delivers each frame that a reader needs.
func (r *rig) follow(t *testing.T) {
	go func() {
		for {
			select {
			case i := <-r.asked:
				r.deliver(t, i)
			case <-t.Context().Done():
				return
			}
		}
	}()
}

// A reader waits only for the frames that it needs, and zeros need no frame. Each frame is
// requested once.
func TestReadsByNeed(t *testing.T) {
	r := newRig(t)
	f := r.Files[0]
	if st, err := f.Stat(); err != nil || st.Size() != int64(len(r.content)) {
		t.Fatalf("%v, %v", st, err)
	}
	zeros := make([]byte, 4096)
	if n, err := f.ReadAt(zeros, 1<<20+512<<10); err != nil || !bytes.Equal(zeros, make([]byte, 4096)) {
		t.Fatalf("zeros: %d, %v", n, err)
	}
	if len(r.needs) != 0 {
		t.Errorf("pages of zeros need frames %d", r.needs)
	}
	got := make(chan []byte)
	go func() {
		p := make([]byte, 4096)
		_, _ = f.ReadAt(p, 3<<20+8192)
		got <- p
	}()
	first := <-r.asked
	select {
	case <-got:
		t.Fatal("a read of a missing frame has returned")
	case <-time.After(100 * time.Millisecond):
	}
	r.deliver(t, first)
	r.follow(t)
	if p := <-got; !bytes.Equal(p, r.content[3<<20+8192:3<<20+8192+4096]) {
		t.Error("a read returns other bytes")
	}
	// Map the file as a VMM does.
	m, err := unix.Mmap(int(f.Fd()), 0, len(r.content), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(m)
	// The kernel reads the mapping. If this process read it and waited for a page, its garbage collector would wait for
	// the reader, and so would the goroutine that delivers the page.
	to, err := os.Create(filepath.Join(t.TempDir(), "copy"))
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	if _, err := to.Write(m); err != nil {
		t.Fatal(err)
	}
	if copied, err := os.ReadFile(to.Name()); err != nil || !bytes.Equal(copied, r.content) {
		t.Errorf("the mapping has other bytes, or none: %v", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if sorted := slices.Sorted(slices.Values(r.needs)); len(slices.Compact(sorted)) != len(r.needs) {
		t.Errorf("a frame was asked for twice: %d", r.needs)
	}
}

// The file can be opened again through /proc, as the daemon does for VMMs, and the process exits
// when the last descriptor is closed.
func TestExitsWithTheLastFile(t *testing.T) {
	r := newRig(t)
	r.follow(t)
	again, err := os.Open(filepath.Join("/proc/self/fd", itoa(int(r.Files[0].Fd()))))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.ReadAt(make([]byte, 100), int64(len(r.content))-100); err != nil {
		t.Fatal(err)
	}
	for i := range r.frames.Len() {
		r.deliver(t, uint32(i))
	}
	if err := r.Whole(); err != nil {
		t.Fatal(err)
	}
	r.Close() // the daemon has gone
	all, err := io.ReadAll(again)
	if err != nil || !bytes.Equal(all, r.content) {
		t.Errorf("%d bytes, %v", len(all), err)
	}
	select {
	case <-r.Ended():
		t.Fatal("the process has exited while a file is open")
	default:
	}
	again.Close()
	select {
	case <-r.Ended():
	case <-time.After(10 * time.Second):
		t.Error("the process still runs")
	}
}

// If a frame never arrives, its readers get an error, and never zeros.
func TestLost(t *testing.T) {
	for name, lose := range map[string]func(r *rig){
		"the source is lost":    func(r *rig) { _ = r.Lose() },
		"the daemon has gone":   func(r *rig) { _ = r.control.Close() },
		"the process is killed": func(r *rig) { _ = r.process.Kill() },
		"the frame is damaged": func(r *rig) {
			at, size := r.frames.Place(0)
			_, _ = r.blob.WriteAt(make([]byte, size), at)
			_ = r.Have(feedproto.Frame{Frame: 0})
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			failed := make(chan error)
			go func() {
				_, err := r.Files[0].ReadAt(make([]byte, 4096), 0)
				failed <- err
			}()
			<-r.asked
			lose(r)
			select {
			case err := <-failed:
				if err == nil || errors.Is(err, io.EOF) {
					t.Errorf("a read of a lost frame: %v", err)
				}
			case <-time.After(10 * time.Second):
				t.Error("a read of a lost frame hangs")
			}
		})
	}
}

func itoa(n int) string { return strconv.Itoa(n) }

// If a process does not answer, it is killed. If it were not, the daemon would wait in the kernel.
func TestSilentProcessesAreKilled(t *testing.T) {
	r := newRig(t)
	if err := unix.Kill(r.process.PID(), unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	opened := make(chan error)
	go func() {
		done := watch(100*time.Millisecond, r.kill)
		f, err := os.Open(filepath.Join("/proc/self/fd", itoa(int(r.Files[0].Fd()))))
		if err == nil {
			f.Close()
		}
		done()
		opened <- err
	}()
	select {
	case err := <-opened:
		if err == nil {
			t.Error("a stopped process has opened a file")
		}
	case <-time.After(20 * time.Second):
		_ = r.process.Kill()
		t.Error("an opening of a file hangs")
	}
}
