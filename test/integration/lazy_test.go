package integration_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/forkd/forkd/client"
)

// slowRegistry is a registry that counts what it sends. It has little bandwidth for long answers, which
// are fetched in the background. The frames that a child waits for come at once, because an
// emulated host is slow enough.
type slowRegistry struct {
	http.Handler

	mu   sync.Mutex // guards the fields below
	slow bool
	dead bool
	sent int64
}

const (
	bytesPerSecond = 256 << 10 // the bandwidth of a slowRegistry for long answers
	longAnswer     = 512 << 10 // bytes; needed and hot frames take less, and a background fetch takes about 1 MiB
)

func (s *slowRegistry) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	dead := s.dead
	s.mu.Unlock()
	if dead {
		panic(http.ErrAbortHandler)
	}
	s.Handler.ServeHTTP(&slowAnswer{w, s}, r)
}

type slowAnswer struct {
	http.ResponseWriter
	s *slowRegistry
}

func (a *slowAnswer) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		piece := p[n:min(n+64<<10, len(p))]
		a.s.mu.Lock()
		slow, dead := a.s.slow && a.long(), a.s.dead
		a.s.sent += int64(len(piece))
		a.s.mu.Unlock()
		if dead {
			panic(http.ErrAbortHandler)
		}
		if slow {
			time.Sleep(time.Duration(len(piece)) * time.Second / bytesPerSecond)
		}
		var m int
		m, err = a.ResponseWriter.Write(piece)
		n += m
	}
	return n, err
}

// long reports whether the whole answer is long.
func (a *slowAnswer) long() bool {
	n, err := strconv.Atoi(a.Header().Get("Content-Length"))
	return err != nil || n > longAnswer
}

// set makes the registry slow or dead, and returns how many bytes it has sent.
func (s *slowRegistry) set(slow, dead bool) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	sent := s.sent
	s.slow, s.dead = slow, dead
	return sent
}

// TestForksBeforeAllIsThere pushes a snapshot to a registry, and forks it at another daemon while it
// arrives. The child answers before a fifth of the bytes has arrived, and continues after the rest
// has arrived. If the registry dies or the daemon is killed in the middle, the children end with
// the reason.
func TestForksBeforeAllIsThere(t *testing.T) {
	f := loadDistribution(t)
	reg := &slowRegistry{Handler: registry.New()}
	server := httptest.NewServer(reg)
	defer server.Close()
	ref := strings.TrimPrefix(server.URL, "http://") + "/team/parent:1"
	a := f.start(t)
	pushed, err := a.PushSnapshot(a.ctx(t, bakeLimit), tag, client.PushRequest{Reference: ref, RecordHot: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("two first runs have read the same %d frames", pushed.HotFrames)
	if pushed.HotFrames == 0 {
		t.Error("no hot frames were recorded")
	}
	eventually(t, quietLimit, func() error { // one VMM is in the pool
		if vmms, feeds := len(a.vmms(t)), len(a.processes(t, "forkd-feed")); vmms > 1 || feeds > 0 {
			return fmt.Errorf("%d VMMs and %d forkd-feed processes are left of the first runs", vmms, feeds)
		}
		return nil
	})
	a.stop(t)
	dir := filepath.Join(f.root, "lazy")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	b := f.start(t, withState(filepath.Join(dir, "s")), withRun(filepath.Join(dir, "r")), withRAM(filepath.Join(dir, "m")),
		withArgs("--lazy-timeout", "20s"))
	defer b.stop(t) // before its files are removed
	before := reg.set(true, false)
	out, _ := b.cli(t, 0, "fork", ref, "--trust", "off")
	id := strings.TrimSpace(out)
	r, err := b.Eval(b.ctx(t, bakeLimit), id, client.EvalRequest{Code: "6 * 7", TimeoutSecs: bakeLimit.Seconds()})
	if err != nil || r.Result == nil || *r.Result != "42" {
		t.Errorf("the child answers %+v, %v", r, err)
	}
	moved := reg.set(true, false) - before
	t.Logf("the child has answered when %.1f of %.1f MiB had come (%.1f %%)", float64(moved)/(1<<20),
		float64(pushed.Bytes)/(1<<20), 100*float64(moved)/float64(pushed.Bytes))
	// The goal is a tenth of the bytes. If other programs use the host's CPUs, more bytes are
	// fetched in the background meanwhile.
	if moved >= pushed.Bytes/5 {
		t.Errorf("%d of %d bytes had come", moved, pushed.Bytes)
	}
	b.refused(t, []string{"arrive"}, "branch", id, "early")
	if got := b.sh(t, id, "python3 -c 'import json; print(json.dumps([1]))'"); got != "[1]\n" {
		t.Errorf("a program of the disk prints %q", got)
	}
	reg.set(false, false)
	// TestPullLazily of internal/host/hub verifies every byte of a snapshot that has arrived.
	if s := b.arrived(t, tag); s.Status != "ready" {
		t.Errorf("the snapshot is %s: %s", s.Status, s.Warning)
	}
	b.value(t, id, "x = list(range(100000)); sum(x)")
	b.branchOf(t, id, "late", "diff") // not live: its memory is mapped from FUSE, see docs/hub.md
	child := b.forkOf(t, "late", 1)[0]
	if got := b.value(t, child.ID, "sum(x)"); got != "4999950000" {
		t.Errorf("a child of the child has %s", got)
	}
	b.kill(t, child, client.Sandbox{ID: id})
	if n := len(b.processes(t, "forkd-feed")); n != 0 {
		t.Logf("%d forkd-feed processes serve leases that are kept open", n)
	}
	b.deletes(t, reg, ref)
	b.goesOn(t, reg, ref)
	b.dies(t, reg, ref)
	b.tears(t, reg, ref)
}

// deletes deletes a snapshot while it arrives. The process that serves its files has limits.
func (d *daemon) deletes(t *testing.T, reg *slowRegistry, ref string) {
	t.Helper()
	box := d.begin(t, reg, ref, "unwanted")
	d.refused(t, []string{"in use by 1 sandbox", box.ID}, "rmi", "unwanted")
	for _, pid := range d.processes(t, "forkd-feed") {
		if group, err := os.ReadFile("/proc/" + pid + "/cgroup"); err != nil ||
			!strings.Contains(string(group), "/feed-") {
			t.Errorf("the cgroup of forkd-feed: %q, %v", group, err)
		}
	}
	d.kill(t, box)
	d.unused(t, "unwanted")
	d.cli(t, 0, "rmi", "unwanted")
	time.Sleep(time.Second) // the last piece of an answer may be on its way
	before := reg.set(true, false)
	time.Sleep(3 * time.Second)
	if now := reg.set(true, false); now != before {
		t.Errorf("%d bytes were fetched after the deletion", now-before)
	}
	d.refused(t, []string{"unwanted"}, "fork", "unwanted")
}

// goesOn lets the registry die while a child runs. The arrival must then go on from a mirror.
// Unlike TestMirrorCompletesAnArrival of internal/host/hub, goesOn does not wait for the rest of
// the snapshot.
func (d *daemon) goesOn(t *testing.T, reg *slowRegistry, ref string) {
	t.Helper()
	second := &slowRegistry{Handler: reg.Handler}
	server := httptest.NewServer(second)
	defer server.Close()
	mirror := strings.TrimPrefix(server.URL, "http://") + "/team/parent"
	reg.set(true, false)
	d.cli(t, 0, "pull", ref, "--tag", "mirrored", "--trust", "off", "--lazy", "--mirror", mirror)
	box := d.forkOf(t, "mirrored", 1)[0]
	reg.set(true, true)
	d.value(t, box.ID, "x = list(range(100000)); sum(x)")
	eventually(t, quietLimit, func() error {
		if second.set(false, false) == 0 {
			return errors.New("nothing came from the mirror")
		}
		return nil
	})
	// This program is not in the memory of the snapshot, so its files come from the mirror.
	if got := d.sh(t, box.ID, "python3 -c 'import json; print(json.dumps([1]))'"); got != "[1]\n" {
		t.Errorf("a program of the disk prints %q", got)
	}
	d.kill(t, box)
	reg.set(false, false)
	d.unused(t, "mirrored")
	d.cli(t, 0, "rmi", "mirrored")
}

// unused waits until no sandbox uses a snapshot. The VMM of a deleted sandbox ends a moment later.
func (d *daemon) unused(t *testing.T, name string) {
	t.Helper()
	for end := time.Now().Add(quietLimit); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if s, err := d.Snapshot(d.ctx(t, quietLimit), name); err == nil && s.Sandboxes == 0 {
			return
		}
	}
	t.Fatalf("%s is still in use", name)
}

// arrived waits until a snapshot is no longer arriving.
func (d *daemon) arrived(t *testing.T, name string) client.Snapshot {
	t.Helper()
	for end := time.Now().Add(bakeLimit); time.Now().Before(end); time.Sleep(time.Second) {
		list, err := d.Snapshots(d.ctx(t, quietLimit))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range list {
			if s.Tag == name && !s.Arriving && s.Status != "writing" {
				return s
			}
		}
	}
	t.Fatalf("%s does not arrive", name)
	return client.Snapshot{}
}

// begin forks a snapshot that is arriving, and returns the child.
func (d *daemon) begin(t *testing.T, reg *slowRegistry, ref, name string) client.Sandbox {
	t.Helper()
	reg.set(true, false)
	req := client.PullRequest{Reference: ref, Tag: name, Trust: "off", Lazy: true}
	if _, err := d.PullSnapshot(d.ctx(t, bakeLimit), req, nil); err != nil {
		t.Fatal(err)
	}
	box := d.forkOf(t, name, 1)[0]
	d.value(t, box.ID, "1")
	return box
}

// dies lets the registry die while a child runs.
func (d *daemon) dies(t *testing.T, reg *slowRegistry, ref string) {
	t.Helper()
	box := d.begin(t, reg, ref, "orphan")
	reg.set(true, true)
	if s := d.arrived(t, "orphan"); s.Status != "failed" || !strings.Contains(s.Warning, "could not be fetched") {
		t.Errorf("the snapshot is %s: %s", s.Status, s.Warning)
	}
	for end := time.Now().Add(quietLimit); ; time.Sleep(time.Second) {
		now, err := d.Sandbox(d.ctx(t, quietLimit), box.ID)
		if err != nil {
			t.Fatal(err)
		}
		if now.State == "exited" {
			if !strings.Contains(now.ExitDetail, "could not be fetched") {
				t.Errorf("the child ended: %s, %s", now.ExitReason, now.ExitDetail)
			}
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the child is %s", now.State)
		}
	}
	d.kill(t, box)
}

// tears kills the daemon while a child runs.
func (d *daemon) tears(t *testing.T, reg *slowRegistry, ref string) {
	t.Helper()
	box := d.begin(t, reg, ref, "torn")
	d.crash(t)
	d.launch(t)
	if now, err := d.Sandbox(d.ctx(t, quietLimit), box.ID); err == nil {
		t.Errorf("the child is still there: %s", now.State)
	}
	if n := len(d.vmms(t)); n > 8 {
		t.Errorf("%d VMMs", n)
	}
	reg.set(false, false)
	req := client.PullRequest{Reference: ref, Tag: "torn", Trust: "off"}
	if _, err := d.PullSnapshot(d.ctx(t, bakeLimit), req, nil); err != nil {
		t.Errorf("a pull after that: %v", err)
	}
}
