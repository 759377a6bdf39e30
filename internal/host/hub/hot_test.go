package hub

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	oci "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/host/feeder"
	"github.com/forkd/forkd/internal/host/helpervm"
	"github.com/forkd/forkd/internal/host/invalid"
)

// rehearsing fakes the first runs of h's hub. Each run reads the base image at the given offsets.
func (h *host) rehearsing(runs ...[]int64) *host {
	h.cfg.Rehearse = func(_ context.Context, s helpervm.Saved) error {
		if len(runs) == 0 {
			return errors.New("one run too many")
		}
		offsets := runs[0]
		runs = runs[1:]
		if s.DiskBytes == 0 || len(s.Disk) != 2 || len(s.Layers) != 1 || len(s.Extents) == 0 || s.Top == nil {
			return errors.New("files are missing")
		}
		if state, err := io.ReadAll(s.State); err != nil || !strings.HasPrefix(string(state), "state of ") {
			return errors.Join(errors.New("another state"), err)
		}
		if p := make([]byte, 1); len(runs) == 1 {
			if _, err := s.Disk[1].ReadAt(p, 2*disklayer.ClusterSize); err != nil || p[0] != 'p' {
				return errors.Join(errors.New("another disk"), err)
			}
		}
		for _, at := range offsets {
			if _, err := s.Disk[0].ReadAt(make([]byte, 100), at); err != nil {
				return err
			}
		}
		return nil
	}
	return h
}

func (h *host) pushHot(t *testing.T, tag, reference string) (Sent, error) {
	t.Helper()
	return h.Push(t.Context(), "ann", tag, remoteOf(t, reference), true, ignore)
}

// hotOf returns the list of hot frames that a registry has for a snapshot.
func (h *host) hotOf(t *testing.T, reference string, d digest.Digest) artifact.Hot {
	t.Helper()
	r := remoteOf(t, reference)
	c, err := h.dial(t.Context(), r, r.ref.Context().Scope("pull"))
	if err != nil {
		t.Fatal(err)
	}
	_, list := h.findHot(t.Context(), c, d)
	return list
}

// A push records the frames that two first runs have in common. A puller fetches them before
// anything else asks for them. A copy has the list too, and a second push records no list.
func TestPushRecordsHotFrames(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	for api, start := range map[string]func(*testing.T) *served{"referrers": serveReferrers, "tags": serve} {
		t.Run(api, func(t *testing.T) { recordHot(t, start(t)) })
	}
}

func recordHot(t *testing.T, s *served) {
	a, b := newHost(t).lazily(t), newHost(t).lazily(t)
	a.rehearsing([]int64{1 << 20, 5 << 20}, []int64{5 << 20, 7 << 20})
	a.makeLarge(t, "py")
	sent, err := a.pushHot(t, "py", s.host+"/team/py:1")
	if err != nil || sent.Hot != 1 {
		t.Fatalf("%d hot frames, %v", sent.Hot, err)
	}
	base := baseOf(sent.Artifact)
	list := b.hotOf(t, s.host+"/team/py:1", sent.Digest())
	if want := (artifact.Hot{base.Digest: {{First: 20, End: 21}}}); !reflect.DeepEqual(list, want) {
		t.Errorf("%v, want %v", list, want)
	}
	if sent, err := a.pushHot(t, "py", s.host+"/team/py:2"); err != nil || sent.Hot != 1 {
		t.Errorf("a second push: %d hot frames, %v", sent.Hot, err)
	}
	if left, err := filepath.Glob(filepath.Join(a.root, "hub", "blobs", ".new-*")); err != nil || len(left) != 0 {
		t.Errorf("%q are left, %v", left, err)
	}
	a.copyTo(t, s.host+"/team/py:1", s.host+"/other/py:1")
	if got := b.hotOf(t, s.host+"/other/py:1", sent.Digest()); !reflect.DeepEqual(got, list) {
		t.Errorf("the copy has the list %v", got)
	}
	var mu sync.Mutex
	var ranges []string
	s.set(func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
		if strings.HasSuffix(r.URL.Path, base.Digest.Encoded()) {
			mu.Lock()
			ranges = append(ranges, r.Header.Get("Range"))
			mu.Unlock()
		}
		inner.ServeHTTP(w, r)
	})
	b.quiet = time.Hour
	b.pullLazily(t, s.host+"/team/py:1")
	for range 200 {
		mu.Lock()
		n := len(ranges)
		mu.Unlock()
		if n > 1 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	lease, err := b.store.AcquireFork("py")
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	want := noisy(1)
	if p := readAt(t, lease.Disk()[0], 100, 5<<20); string(p) != string(want[5<<20:5<<20+100]) {
		t.Error("the base image has other bytes")
	}
	mu.Lock()
	defer mu.Unlock()
	if len(ranges) != 2 { // the index and the hot frame
		t.Errorf("the ranges %q of the base were fetched", ranges)
	}
}

// If the frames cannot be recorded, a push fails, and the registry gets no tag.
func TestPushWithoutRehearsal(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a := serve(t), newHost(t).hasty()
	a.makeLarge(t, "py")
	if _, err := a.pushHot(t, "py", s.host+"/team/py:1"); !errors.As(err, new(*invalid.Error)) {
		t.Errorf("a daemon that cannot run snapshots: %v", err)
	}
	a.lazily(t).rehearsing()
	_, err := a.pushHot(t, "py", s.host+"/team/py:1")
	if err == nil || !strings.Contains(err.Error(), "one run too many") {
		t.Errorf("a first run that fails: %v", err)
	}
	if hasTag(t, s, "team/py", "1") {
		t.Error("the registry has the tag")
	}
}

// A push runs no snapshot whose indexes need too much memory, or whose guest could use the host's
// reserve of memory.
func TestPushRunsNoLargeSnapshot(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a := serve(t), newHost(t).hasty()
	a.makeLarge(t, "py")
	ran := 0
	a.cfg.Feeder = &feeder.Program{Bin: "/nonexistent"}
	a.cfg.Rehearse = func(context.Context, helpervm.Saved) error { ran++; return nil }
	most := a.indexes
	a.indexes = 100
	if _, err := a.pushHot(t, "py", s.host+"/team/py:1"); !errors.As(err, new(*invalid.Error)) {
		t.Errorf("long indexes: %v", err)
	}
	a.indexes = most
	a.cfg.Room = func(wants uint64, _ *os.File) error {
		if wants >= memory {
			return unix.ENOMEM
		}
		return nil
	}
	if _, err := a.pushHot(t, "py", s.host+"/team/py:1"); !errors.Is(err, unix.ENOMEM) {
		t.Errorf("no room in memory: %v", err)
	}
	if ran != 0 || hasTag(t, s, "team/py", "1") {
		t.Errorf("%d runs, or the registry has the tag", ran)
	}
}

// plantHot writes an artifact that refers to a snapshot, like an attacker with write access to the
// repository. It returns the artifact.
func (h *host) plantHot(t *testing.T, reference string, subject digest.Digest, kind, file string) referrer {
	t.Helper()
	r := remoteOf(t, reference)
	c, err := h.dial(t.Context(), r, r.ref.Context().Scope("push,pull"))
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.pusher()
	if err != nil {
		t.Fatal(err)
	}
	about := oci.Descriptor{MediaType: oci.MediaTypeImageManifest, Digest: subject, Size: 1}
	ref, err := newReferrer(kind, about, []byte(file), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := ref.putHot(t.Context(), out, r.ref.Context()); err != nil {
		t.Fatal(err)
	}
	return ref
}

// A list from an attacker changes nothing but the order of the requests.
func TestHostileHotLists(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	for name, c := range map[string]struct {
		kind string
		file string // BASE stands for the digest of the base image's blob, which has 32 frames
	}{
		"outside of the blob": {artifact.HotType, `{"blobs":{"BASE":[[0,1],[30,4000000000]]}}`},
		"not sorted":          {artifact.HotType, `{"blobs":{"BASE":[[9,10],[0,1]]}}`},
		"another blob":        {artifact.HotType, `{"blobs":{"` + digest.FromString("x").String() + `":[[0,4000000000]]}}`},
		"all frames":          {artifact.HotType, `{"blobs":{"BASE":[[0,32]]}}`},
		"another type":        {"application/vnd.example", `{"blobs":{"BASE":[[0,1]]}}`},
		"no JSON":             {artifact.HotType, "hot"},
		"huge":                {artifact.HotType, strings.Repeat(" ", artifact.MaxHot+1)},
	} {
		t.Run(name, func(t *testing.T) {
			s, a, b := serveReferrers(t), newHost(t).hasty(), newHost(t).lazily(t)
			a.makeLarge(t, "py")
			sent := a.push(t, "py", s.host+"/team/py:1")
			file := strings.ReplaceAll(c.file, "BASE", baseOf(sent.Artifact).Digest.String())
			a.plantHot(t, s.host+"/team/py:1", sent.Digest(), c.kind, file)
			s.set(nil)
			b.pullLazily(t, s.host+"/team/py:1")
			if i := b.whole(t, "py"); i.Damage != "" {
				t.Fatal(i.Damage)
			}
			b.check(t, "py", map[int64]byte{2: 'p'})
			if _, _, out := s.set(nil); out > once(sent.Artifact)+2*artifact.MaxHot {
				t.Errorf("%d bytes were fetched, of %d", out, once(sent.Artifact))
			}
		})
	}
}

// A list for another snapshot is ignored, even if the registry says that it is for this one. A registry
// that does not answer delays a pull only for a short time.
func TestHotListsOfLyingRegistries(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a := serve(t), newHost(t).hasty()
	a.makeLarge(t, "py")
	sent := a.push(t, "py", s.host+"/team/py:1")
	other := digest.FromString("another snapshot")
	ref := a.plantHot(t, s.host+"/team/py:1", other, artifact.HotType,
		`{"blobs":{"`+baseOf(sent.Artifact).Digest.String()+`":[[0,1]]}}`)
	index, err := json.Marshal(oci.Index{MediaType: oci.MediaTypeImageIndex, Manifests: []oci.Descriptor{{
		MediaType: oci.MediaTypeImageManifest, ArtifactType: artifact.HotType,
		Digest: digest.FromBytes(ref.text), Size: int64(len(ref.text))}}})
	if err != nil {
		t.Fatal(err)
	}
	put := func(d digest.Digest) {
		path := s.URL + "/v2/team/py/manifests/" + strings.Replace(d.String(), ":", "-", 1)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, path, bytes.NewReader(index))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", oci.MediaTypeImageIndex)
		resp, err := http.DefaultClient.Do(req)
		if err != nil || resp.StatusCode != http.StatusCreated {
			t.Fatalf("%v, %v", resp, err)
		}
		resp.Body.Close()
	}
	put(sent.Digest())
	put(other)
	if got := a.hotOf(t, s.host+"/team/py:1", other); len(got) != 1 {
		t.Errorf("the snapshot that it is for: %v", got)
	}
	if got := a.hotOf(t, s.host+"/team/py:1", sent.Digest()); got != nil {
		t.Errorf("another snapshot: %v", got)
	}
	a.hotTime = 100 * time.Millisecond
	s.set(func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
		if strings.Contains(r.URL.Path, "/referrers/") {
			<-r.Context().Done()
			panic(http.ErrAbortHandler)
		}
		inner.ServeHTTP(w, r)
	})
	if got := a.hotOf(t, s.host+"/team/py:1", sent.Digest()); got != nil {
		t.Errorf("a registry that does not answer: %v", got)
	}
}
