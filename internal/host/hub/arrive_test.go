package hub

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/feed"
	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/host/feeder"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/jail"
	"github.com/forkd/forkd/internal/jail/posture"
	"github.com/forkd/forkd/internal/proto/vm"
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

// h.lazily(t) gives h's hub a feeder, and returns h. It skips the test if the host lacks FUSE.
func (h *host) lazily(t *testing.T) *host {
	t.Helper()
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil || os.Geteuid() != 0 {
		t.Skipf("needs root and FUSE: %v", err)
	}
	f.Close()
	bin, err := testProgram()
	if err != nil {
		t.Fatal(err)
	}
	jails, err := jail.New(jail.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h.cfg.Feeder = &feeder.Program{Bin: bin, Jail: jails}
	h.quiet = 500 * time.Millisecond
	return h.hasty()
}

// baseBytes is the size of the base image of makeLarge.
const baseBytes = 8 << 20

// noisy returns incompressible bytes.
func noisy(seed byte) []byte {
	p := make([]byte, baseBytes)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(p)
	return p
}

// makeLarge makes a snapshot that consists mostly of its base image.
func (h *host) makeLarge(t *testing.T, tag string) {
	t.Helper()
	h.disk = baseBytes
	h.makeOf(t, tag, "", 2, 'p', func(name string) []byte {
		if name == "base" {
			return noisy(1)
		}
		return []byte(name)
	})
}

func (h *host) pullLazily(t *testing.T, reference string) Pulled {
	t.Helper()
	p, err := h.PullLazily(t.Context(), "ann", "", remoteOf(t, reference), ignore)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// whole waits until a snapshot is no longer arriving, and returns its Info.
func (h *host) whole(t *testing.T, tag string) store.Info {
	t.Helper()
	for range 600 {
		i, err := h.store.Info(tag)
		if err != nil {
			t.Fatal(err)
		}
		left, err := filepath.Glob(filepath.Join(h.root, "hub", "blobs", ".new-*"))
		if !i.Arriving && !i.Writing && err == nil && len(left) == 0 {
			return i
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal("the snapshot does not arrive")
	return store.Info{}
}

func readAt(t *testing.T, f *os.File, n int, offset int64) []byte {
	t.Helper()
	p := make([]byte, n)
	if _, err := f.ReadAt(p, offset); err != nil {
		t.Fatal(err)
	}
	return p
}

// A snapshot can be forked before most of its bytes have arrived. Reads get the right bytes, and
// fetch little. After the arrival, the snapshot is like every pulled snapshot, with the same ID,
// and older leases still work.
func TestPullLazily(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a, b := serve(t), newHost(t).hasty(), newHost(t).lazily(t)
	a.makeLarge(t, "py")
	a.push(t, "py", s.host+"/team/py:1")
	s.set(nil)
	got := b.pullLazily(t, s.host+"/team/py:1")
	if i, err := b.store.Info("py"); err != nil || !i.Arriving || !got.Info.Arriving {
		t.Fatalf("%+v, %v", i, err)
	}
	for what, use := range map[string]func() error{
		"lease":  func() error { _, err := b.store.Acquire("py"); return err },
		"export": func() error { _, err := b.store.Export(t.Context(), "py"); return err },
	} {
		if arriving := (*store.ArrivingError)(nil); !errors.As(use(), &arriving) {
			t.Errorf("%s of a snapshot that is arriving: %v", what, use())
		}
	}
	lease, err := b.store.AcquireFork("py")
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	e := lease.Extents()[0]
	if p := readAt(t, lease.Layers()[e.Layer], vm.PageSize, int64(e.Offset)); p[7] != 'p' {
		t.Errorf("the page of memory has %q", p[7])
	}
	if p := readAt(t, lease.Disk()[1], 1, 2*disklayer.ClusterSize); p[0] != 'p' {
		t.Errorf("the cluster of the disk has %q", p[0])
	}
	want := noisy(1)
	if p := readAt(t, lease.Disk()[0], 100, 5<<20); string(p) != string(want[5<<20:5<<20+100]) {
		t.Error("the base image has other bytes")
	}
	if _, _, out := s.set(nil); out > once(got.Artifact)/10 {
		t.Errorf("%d of %d bytes have come", out, once(got.Artifact))
	} else {
		t.Logf("%d of %d bytes have come", out, once(got.Artifact))
	}
	id := lease.Manifest().ID
	if i := b.whole(t, "py"); i.Damage != "" {
		t.Fatal(i.Damage)
	}
	b.check(t, "py", map[int64]byte{2: 'p'})
	if now, _, err := b.store.Version("py"); err != nil || now != id {
		t.Errorf("its ID is %s now, and was %s: %v", now, id, err)
	}
	if p := readAt(t, lease.Disk()[0], baseBytes, 0); string(p) != string(want) {
		t.Error("an older lease has other bytes")
	}
	if lease.Arrival().Err() != nil || !lease.Manifest().Created.Before(time.Now()) {
		t.Error("the lease is lost")
	}
	if _, _, out := s.set(nil); out > once(got.Artifact) {
		t.Errorf("%d bytes were fetched after that, of %d in all", out, once(got.Artifact))
	}
	b.leavesNothing(t, "after the arrival", 1)
	lease.Release()
	for range 400 {
		if feeders(t) == 0 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if n := feeders(t); n != 0 {
		t.Errorf("%d processes still serve files that nothing uses", n)
	}
	if _, err := b.store.Delete("py", store.DeleteSingle); err != nil {
		t.Error(err)
	}
}

// feeders returns the number of forkd-feed processes of this test.
func feeders(t *testing.T) (n int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		name, err := os.ReadFile(path) // the process may have ended
		status, err2 := os.ReadFile(filepath.Join(filepath.Dir(path), "status"))
		mine := fmt.Sprintf("\nPPid:\t%d\n", os.Getpid())
		if err == nil && err2 == nil && string(name) == feed.Name+"\x00" && strings.Contains(string(status), mine) {
			n++
		}
	}
	return n
}

// If the source lies or dies, readers get an error, sandboxes learn the reason, and nothing is left.
func TestLostArrivals(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	flip := func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			w = &flipped{ResponseWriter: w}
		}
		inner.ServeHTTP(w, r)
	}
	whole := func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
		r.Header.Del("Range")
		inner.ServeHTTP(w, r)
	}
	die := func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { panic(http.ErrAbortHandler) }
	for name, c := range map[string]struct {
		around func(http.ResponseWriter, *http.Request, http.Handler)
		want   string
	}{
		"lies":       {flip, "differs from its digest"},
		"dies":       {die, "EOF"},
		"truncates":  {cutting(1000), "EOF"},
		"whole blob": {whole, "range"},
	} {
		t.Run(name, func(t *testing.T) {
			s, a, b := serve(t), newHost(t).hasty(), newHost(t).lazily(t)
			a.makeLarge(t, "py")
			a.push(t, "py", s.host+"/team/py:1")
			b.cfg.LazyTimeout = 200 * time.Millisecond
			b.pullLazily(t, s.host+"/team/py:1")
			lease, err := b.store.AcquireFork("py")
			if err != nil {
				t.Fatal(err)
			}
			defer lease.Release()
			s.set(c.around)
			if _, err := lease.Disk()[0].ReadAt(make([]byte, 100), 5<<20); err == nil || errors.Is(err, io.EOF) {
				t.Errorf("a read returns %v", err)
			}
			select {
			case <-lease.Arrival().Lost():
			case <-time.After(20 * time.Second):
				t.Fatal("the lease does not learn it")
			}
			if why := lease.Arrival().Err(); why == nil || !strings.Contains(why.Error(), c.want) {
				t.Errorf("the reason is %v", why)
			}
			if i := b.whole(t, "py"); !strings.Contains(i.Damage, "could not be fetched") {
				t.Errorf("%+v", i)
			}
			if _, err := b.store.AcquireFork("py"); err == nil {
				t.Error("it can be forked")
			}
			b.leavesNothing(t, name, 1)
			s.set(nil)
			if _, err := b.Pull(t.Context(), "ann", "", remoteOf(t, s.host+"/team/py:1"), ignore); err != nil {
				t.Errorf("a pull after that: %v", err)
			}
		})
	}
}

// flipped changes a bit of an answer.
type flipped struct{ http.ResponseWriter }

func (f *flipped) Write(p []byte) (int, error) {
	q := append([]byte{}, p...)
	q[len(q)/2] ^= 1
	return f.ResponseWriter.Write(q)
}

// After a crash of the daemon, the snapshot is gone, and its sandboxes learn why.
func TestTornArrival(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a, b := serve(t), newHost(t).hasty(), newHost(t).lazily(t)
	a.makeLarge(t, "py")
	a.push(t, "py", s.host+"/team/py:1")
	b.quiet = time.Hour
	b.pullLazily(t, s.host+"/team/py:1")
	lease, err := b.store.AcquireFork("py")
	if err != nil {
		t.Fatal(err)
	}
	id := lease.Manifest().ID
	again := &host{root: filepath.Join(t.TempDir(), "state"), ram: b.ram} // the old store keeps its lock
	if err := os.CopyFS(again.root, os.DirFS(b.root)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(again.root, 0o700); err != nil {
		t.Fatal(err)
	}
	again.open(t)
	if _, err := again.store.AcquireVersion("py", id); !errors.As(err, new(*store.TornError)) {
		t.Errorf("a lease for a sandbox that was taken over: %v", err)
	}
	again.leavesNothing(t, "after a crash", 0)
	if err := again.hasty().pullErr(t, s.host+"/team/py:1"); err != nil {
		t.Errorf("a pull after that: %v", err)
	}
	lease.Release()
	if _, err := b.store.Delete("py", store.DeleteSingle); err != nil {
		t.Error(err)
	}
	b.gone(t, "py")
}

func (h *host) pullErr(t *testing.T, reference string) error {
	_, err := h.Pull(t.Context(), "ann", "", remoteOf(t, reference), ignore)
	return err
}

// If the registry does not support ranges, or the host lacks FUSE, PullLazily pulls the whole
// snapshot first.
func TestPulledAsAWhole(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a, b, c := serve(t), newHost(t).hasty(), newHost(t).lazily(t), newHost(t).hasty()
	a.makeLarge(t, "py")
	a.push(t, "py", s.host+"/team/py:1")
	if got := c.pullLazily(t, s.host+"/team/py:1"); got.Info.Arriving {
		t.Error("a host without a feeder")
	}
	c.check(t, "py", map[int64]byte{2: 'p'})
	var n atomic.Int64
	s.set(func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
		if r.Header.Get("Range") != "" {
			n.Add(1)
		}
		r.Header.Del("Range")
		inner.ServeHTTP(w, r)
	})
	if got := b.pullLazily(t, s.host+"/team/py:1"); got.Info.Arriving || n.Load() == 0 {
		t.Errorf("a registry without ranges: %d requests for ranges", n.Load())
	}
	b.check(t, "py", map[int64]byte{2: 'p'})
	b.leavesNothing(t, "a registry without ranges", 1)
	s.set(nil)
	long := newHost(t).lazily(t)
	long.indexes = 100
	if got := long.pullLazily(t, s.host+"/team/py:1"); got.Info.Arriving {
		t.Error("a snapshot with long indexes")
	}
}

// cachedBase returns a registry with a snapshot, and a host whose cache has the blob of its base
// image, as an earlier pull would have left it.
func cachedBase(t *testing.T) (s *served, b *host, base artifact.Blob) {
	t.Helper()
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a, b := serve(t), newHost(t).hasty(), newHost(t).lazily(t)
	a.makeLarge(t, "py")
	sent := a.push(t, "py", s.host+"/team/py:1")
	base = baseOf(sent.Artifact)
	f := a.cache.open(base.Digest)
	if f == nil {
		t.Fatal("the sender's cache lacks the base")
	}
	defer f.Close()
	kept, err := b.cache.put(base.Digest, base.Size, f)
	if err != nil {
		t.Fatal(err)
	}
	kept.Close()
	return s, b, base
}

// If a blob in the cache is damaged, the snapshot is lost, and the next pull fetches the blob again.
func TestDamagedBlobsLeaveTheCache(t *testing.T) {
	s, b, base := cachedBase(t)
	f, err := os.OpenFile(b.cache.blob(base.Digest), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("damage"), base.Size/2); err != nil {
		t.Fatal(err)
	}
	f.Close()
	b.pullLazily(t, s.host+"/team/py:1")
	if i := b.whole(t, "py"); !strings.Contains(i.Damage, "differs") {
		t.Errorf("%+v", i)
	}
	if err := b.pullErr(t, s.host+"/team/py:1"); err != nil {
		t.Errorf("a pull after that: %v", err)
	}
}

// Blobs that an earlier pull has left in the cache are served from the cache, and are removed from
// it afterwards.
func TestPullLazilyFromTheCache(t *testing.T) {
	s, b, base := cachedBase(t)
	s.set(nil)
	b.pullLazily(t, s.host+"/team/py:1")
	lease, err := b.store.AcquireFork("py")
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	if p := readAt(t, lease.Disk()[0], baseBytes, 0); string(p) != string(noisy(1)) {
		t.Error("the base image has other bytes")
	}
	if i := b.whole(t, "py"); i.Damage != "" {
		t.Fatal(i.Damage)
	}
	b.check(t, "py", map[int64]byte{2: 'p'})
	if _, _, out := s.set(nil); out > base.Size/10 {
		t.Errorf("%d bytes were fetched, though the base of %d was in the cache", out, base.Size)
	}
	for range 100 { // it is removed soon after the arrival
		if b.cache.has(base.Digest) {
			time.Sleep(50 * time.Millisecond)
		}
	}
	if b.cache.has(base.Digest) {
		t.Error("the cache keeps a blob whose content the store has")
	}
}

// A snapshot that is still arriving is deleted together with the snapshot that it builds on. If a
// sandbox uses the arriving snapshot, the deletion is refused.
func TestCascadesEndArrivals(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a, b := serve(t), newHost(t).hasty(), newHost(t).lazily(t)
	a.makeLarge(t, "below")
	a.make(t, "py", "below", 4, 'q')
	a.push(t, "below", s.host+"/team/below:1")
	a.push(t, "py", s.host+"/team/py:1")
	if err := b.pullErr(t, s.host+"/team/below:1"); err != nil {
		t.Fatal(err)
	}
	b.pack(t, "below") // after this, its digests are known
	b.quiet = time.Hour
	b.pullLazily(t, s.host+"/team/py:1")
	if d, err := b.store.Detail("below"); err != nil || len(d.Dependents) != 1 {
		t.Fatalf("%+v, %v", d, err)
	}
	lease, err := b.store.AcquireFork("py")
	if err != nil {
		t.Fatal(err)
	}
	if gone, err := b.store.Delete("below", store.DeleteCascade); !errors.As(err, new(*store.InUseError)) {
		t.Errorf("a deletion of the family of a sandbox: %v, %v", gone, err)
	}
	lease.Release()
	if gone, err := b.store.Delete("below", store.DeleteCascade); err != nil || len(gone) != 2 {
		t.Errorf("a deletion of the family: %v, %v", gone, err)
	}
	b.gone(t, "py")
	if err := b.pullErr(t, s.host+"/team/py:1"); err != nil {
		t.Fatal(err)
	}
	b.check(t, "py", map[int64]byte{2: 'p', 4: 'q'})
}
