package hub

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/host/store"
)

// mirrored returns two registries with the same snapshot, and a reference to the first registry,
// with the second registry as a mirror.
func mirrored(t *testing.T, a *host) (first, second *served, r Remote) {
	t.Helper()
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	first, second = serve(t), serve(t)
	a.makeLarge(t, "py")
	a.push(t, "py", first.host+"/team/py:1")
	a.push(t, "py", second.host+"/copies/py:1")
	mirror, err := ParseMirror("mirrors", second.host+"/copies/py")
	if err != nil {
		t.Fatal(err)
	}
	return first, second, remoteOf(t, first.host+"/team/py:1").Or(mirror)
}

// aborting breaks off all connections.
func aborting(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) }

// flipping changes a bit of each blob.
func flipping(w http.ResponseWriter, r *http.Request, inner http.Handler) {
	if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
		w = &flipped{ResponseWriter: w}
	}
	inner.ServeHTTP(w, r)
}

// hanging answers no request for a part of a blob.
func hanging(w http.ResponseWriter, r *http.Request, inner http.Handler) {
	if r.Header.Get("Range") != "" {
		<-r.Context().Done()
		return
	}
	inner.ServeHTTP(w, r)
}

// dripping sends parts of blobs at some KiB per second.
func dripping(w http.ResponseWriter, r *http.Request, inner http.Handler) {
	if r.Header.Get("Range") != "" {
		w = &drip{w, r}
	}
	inner.ServeHTTP(w, r)
}

type drip struct {
	http.ResponseWriter
	r *http.Request
}

func (d *drip) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil && d.r.Context().Err() == nil {
		var m int
		m, err = d.ResponseWriter.Write(p[n:min(n+64, len(p))])
		n += m
		_ = http.NewResponseController(d.ResponseWriter).Flush()
		time.Sleep(20 * time.Millisecond)
	}
	return n, errors.Join(err, d.r.Context().Err())
}

// If a source dies, lies or is slow in the middle of an arrival, the arrival goes on from a mirror, and readers
// notice nothing.
func TestArrivalsGoOnFromAMirror(t *testing.T) {
	a := newHost(t).hasty()
	first, second, r := mirrored(t, a)
	for name, around := range map[string]func(http.ResponseWriter, *http.Request, http.Handler){
		"dies": aborting, "lies": flipping, "hangs": hanging, "drips": dripping,
	} {
		first.set(nil)
		b := newHost(t).lazily(t)
		b.quiet = time.Hour
		b.cfg.LazyTimeout, b.leave = 200*time.Millisecond, 500*time.Millisecond
		if _, err := b.PullLazily(t.Context(), "ann", "", r, ignore); err != nil {
			t.Fatal(err)
		}
		lease, err := b.store.AcquireFork("py")
		if err != nil {
			t.Fatal(err)
		}
		first.set(around)
		second.set(nil)
		if p := readAt(t, lease.Disk()[0], 100, 5<<20); string(p) != string(noisy(1)[5<<20:5<<20+100]) {
			t.Errorf("%s: the base image has other bytes", name)
		}
		if _, _, out := second.set(nil); out == 0 {
			t.Errorf("%s: nothing came from the mirror", name)
		}
		second.set(aborting) // then no source is left
		if _, err := lease.Disk()[0].ReadAt(make([]byte, 100), 1<<20); err == nil {
			t.Errorf("%s: a read without a source succeeds", name)
		}
		if i := b.whole(t, "py"); !strings.Contains(i.Damage, second.host) {
			t.Errorf("%s: without a source: %+v", name, i)
		}
		lease.Release()
		second.set(nil)
		b.quiet = 0
		if _, err := b.PullLazily(t.Context(), "ann", "", r, ignore); err == nil && name == "dies" {
			t.Error("a mirror does not replace the registry that names the snapshot")
		}
	}
}

// If a source dies, a mirror completes the arrival.
func TestMirrorCompletesAnArrival(t *testing.T) {
	first, second, r := mirrored(t, newHost(t).hasty())
	b := newHost(t).lazily(t)
	b.cfg.LazyTimeout, b.leave = time.Second, time.Second // how long a source may fail
	first.set(nil)
	second.set(nil)
	if _, err := b.PullLazily(t.Context(), "ann", "", r, ignore); err != nil {
		t.Fatal(err)
	}
	first.set(aborting)
	if i := b.whole(t, "py"); i.Damage != "" {
		t.Fatal(i.Damage)
	}
	b.check(t, "py", map[int64]byte{2: 'p'})
	_, _, out := second.set(nil)
	t.Logf("%d bytes came from the mirror", out)
}

// A pull of a whole snapshot goes on from a mirror too, and fetches an interrupted file again.
func TestPullsGoOnFromAMirror(t *testing.T) {
	a, b := newHost(t).hasty(), newHost(t).hasty()
	first, second, r := mirrored(t, a)
	b.tries, b.leave = 2, 500*time.Millisecond
	for name, around := range map[string]func(http.ResponseWriter, *http.Request, http.Handler){
		"dies": cutting(100_000), "hangs": hanging, "drips": dripping,
	} {
		first.set(around)
		second.set(nil)
		if _, err := b.Pull(t.Context(), "ann", name, r, ignore); err != nil {
			t.Fatal(name, err)
		}
		if _, _, out := second.set(nil); out == 0 {
			t.Errorf("%s: nothing came from the mirror", name)
		}
		b.check(t, name, map[int64]byte{2: 'p'})
		if _, err := b.store.Delete(name, store.DeleteSingle); err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range []string{"py", "host.test/py:1", "host.test/Py", "host.test/py@sha256:00"} {
		if m, err := ParseMirror("mirrors", bad); err == nil {
			t.Errorf("%q is the mirror %v", bad, m)
		}
	}
}
