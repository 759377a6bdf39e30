package tenancy

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/byage"
	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/mounts"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/host/volume"
	"github.com/forkd/forkd/internal/host/workspace"
	"github.com/forkd/forkd/internal/proto/vm"
)

// metrics is an Observer that counts nothing.
type metrics struct{}

func (metrics) Refused(string)                         {}
func (metrics) ForkDone(sandbox.ForkResult, error)     {}
func (metrics) ChildReady(sandbox.Timing)              {}
func (metrics) PoolRefilled(time.Duration)             {}
func (metrics) ConfirmFailed()                         {}
func (metrics) BranchDone(sandbox.BranchResult, error) {}
func (metrics) RollbackDone(error)                     {}
func (metrics) SandboxExited(string)                   {}

// newHost returns a Host with the parent "p", which all principals may use.
func newHost(t *testing.T) *Host {
	t.Helper()
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	events := event.NewRing(64)
	st, err := store.Open(store.Config{Root: filepath.Join(dir, "state"), RAM: filepath.Join(dir, "ram"), Events: events})
	if err != nil {
		t.Fatal(err)
	}
	vmms, run := &vmfake.VMMs{}, filepath.Join(dir, "run")
	m, err := sandbox.New(sandbox.Config{
		Store: st, VMMs: vmms, Guest: func(string, string) sandbox.Guest { return vmfake.Guest{All: vmms} },
		NewTop: disklayer.Format, RunDir: run, DataDir: filepath.Join(dir, "data"), Observer: metrics{}, Events: events,
		Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(true); st.Close() })
	w, err := workspace.Open(filepath.Join(dir, "workspaces"), m, log)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	baker := bake.New(bake.Config{Store: st, VMMs: vmms, Guest: func(string) bake.Guest { return vmfake.Guest{All: vmms} },
		RunDir: run, Template: "host", Accel: "kvm", Log: log, Admit: m.AdmitParent})
	if _, err := baker.Bake(t.Context(), bake.Request{Tag: "p", Kernel: file, Initrd: file, Rootfs: file}); err != nil {
		t.Fatal(err)
	}
	volumes, err := volume.Open(volume.Config{Dir: filepath.Join(dir, "volumes"), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	return New(m, w, volumes)
}

// part holds the objects of one team.
type part struct {
	view      *View
	sandbox   string // a sandbox of the team
	tag       string // a branch of the sandbox
	workspace string
	volume    string
}

func newPart(t *testing.T, h *Host, team string) part {
	t.Helper()
	p := part{view: h.For(owner.Owner{Name: "token:" + team, Prefix: owner.Prefix(team + "/")}), tag: team + ".x",
		workspace: team + ".w", volume: team + ".v"}
	made, err := p.view.Fork(t.Context(), sandbox.ForkRequest{Tag: "p", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	p.sandbox = made.Sandboxes[0].ID
	branch := sandbox.BranchRequest{Tag: p.tag, Mode: vm.BranchDiff}
	if _, err := p.view.Branch(t.Context(), p.sandbox, branch); err != nil {
		t.Fatal(err)
	}
	if _, err := p.view.CreateWorkspace(t.Context(), p.workspace, sandbox.ForkRequest{Tag: "p"}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.view.CreateVolume(volume.Request{Name: p.volume, SizeMiB: 16}); err != nil {
		t.Fatal(err)
	}
	return p
}

// isMissing reports whether err says that an object does not exist.
func isMissing(err error) bool {
	var (
		box  *sandbox.NotFoundError
		tag  *store.NotFoundError
		name *workspace.Error
		disk *volume.Error
	)
	return errors.As(err, &box) || errors.As(err, &tag) || errors.As(err, &name) || errors.As(err, &disk)
}

// The variable unnamed lists the methods of View that do not take the name of an existing object.
// The tests below call each of them.
var unnamed = []string{"Limited", "MayName", "Events", "Fork", "Sandboxes", "SandboxPage", "Snapshots",
	"Workspaces", "LeftAlone", "Machine", "TagOf", "BaseImage", "UnnamedBytes", "CreateWorkspace", "Diff",
	"Export", "Apply", "MayUnpack", "Unpack", "Pull", "PullLazily", "Copy", "Find", "Sign", "Verify", "OwnerOf",
	"Volumes", "CreateVolume", "OwnerOfVolume", "Key"}

// call calls a method of a View with a name as the first argument, and zero values as all other
// arguments. It returns the method's error.
func call(t *testing.T, v *View, m reflect.Method, name string) error {
	t.Helper()
	args, named := []reflect.Value{reflect.ValueOf(v)}, false
	for i := 1; i < m.Type.NumIn(); i++ {
		in := m.Type.In(i)
		switch {
		case in == reflect.TypeFor[context.Context]():
			args = append(args, reflect.ValueOf(t.Context()))
		case in.Kind() == reflect.String && !named:
			args, named = append(args, reflect.ValueOf(name)), true
		default:
			args = append(args, reflect.Zero(in))
		}
	}
	out := m.Func.Call(args)
	err, _ := out[len(out)-1].Interface().(error)
	if !named || out[len(out)-1].Type() != reflect.TypeFor[error]() {
		t.Fatalf("%s names nothing, or has no error: test it by itself, and add it to unnamed", m.Name)
	}
	return err
}

// For every method, objects of another principal do not exist. For a View without a principal, no
// objects exist.
func TestWhatIsOfOthersIsNotThere(t *testing.T) {
	h := newHost(t)
	a, b := newPart(t, h, "a"), newPart(t, h, "b")
	called := 0
	for m := range reflect.TypeFor[*View]().Methods() {
		if slices.Contains(unnamed, m.Name) {
			continue
		}
		called++
		for what, v := range map[string]*View{"another team": b.view, "nobody": h.For(owner.Owner{}),
			"a client of another sandbox": h.Permitted(b.sandbox)} {
			for _, name := range []string{a.sandbox, a.tag, a.workspace, a.volume} {
				if err := call(t, v, m, name); !isMissing(err) {
					t.Errorf("%s of %s for %s: %v", m.Name, name, what, err)
				}
			}
		}
	}
	if called < 20 {
		t.Errorf("%d methods were called", called)
	}
	if i, err := a.view.Sandbox(a.sandbox); err != nil || i.State != sandbox.Running {
		t.Errorf("what others tried has changed it: %v, %v", i.State, err)
	}
	for _, err := range []error{a.view.HasSnapshot(a.tag), a.view.Reach(a.sandbox),
		h.Permitted(a.sandbox).Reach(a.sandbox)} {
		if err != nil {
			t.Errorf("what is its own: %v", err)
		}
	}
	if _, err := a.view.Workspace(a.workspace); err != nil {
		t.Error(err)
	}
	keys := map[Key]string{}
	for what, v := range map[string]*View{"a": a.view, "b": b.view, "no principal": h.For(owner.Owner{}),
		"a client of one sandbox": h.Permitted(a.sandbox), "a client of another sandbox": h.Permitted(b.sandbox)} {
		if other, ok := keys[v.Key()]; ok {
			t.Errorf("the views of %s and %s have the same key", what, other)
		}
		keys[v.Key()] = what
	}
	if _, err := a.view.Volume(a.volume); err != nil {
		t.Error(err)
	}
}

// Lists contain the principal's own objects, and parents.
func TestLists(t *testing.T) {
	h := newHost(t)
	a, b := newPart(t, h, "a"), newPart(t, h, "b")
	all := h.For(owner.Owner{Name: "token:all"})
	for _, c := range []struct {
		name                                      string
		view                                      *View
		sandboxes, snapshots, workspaces, volumes int
	}{
		{"a", a.view, 2, 2, 1, 1}, {"b", b.view, 2, 2, 1, 1}, {"all", all, 4, 3, 2, 2},
		{"nobody", h.For(owner.Owner{}), 0, 0, 0, 0}, {"one sandbox", h.Permitted(a.sandbox), 0, 0, 0, 0},
	} {
		if n := len(c.view.Sandboxes()); n != c.sandboxes {
			t.Errorf("%s: %d sandboxes, want %d", c.name, n, c.sandboxes)
		}
		if n := len(c.view.SandboxPage(byage.Place{}, 100, func(sandbox.Info) bool { return true })); n != c.sandboxes {
			t.Errorf("%s: %d sandboxes on a page, want %d", c.name, n, c.sandboxes)
		}
		var paged []sandbox.Info
		for at := (byage.Place{}); ; {
			page := c.view.SandboxPage(at, 1, func(sandbox.Info) bool { return true })
			if paged = append(paged, page...); len(page) == 0 {
				break
			}
			at = byage.Place{Created: page[0].Created, ID: page[0].ID}
		}
		if !reflect.DeepEqual(paged, c.view.Sandboxes()) && len(paged)+len(c.view.Sandboxes()) > 0 {
			t.Errorf("%s: the pages have %d sandboxes, the list %d", c.name, len(paged), len(c.view.Sandboxes()))
		}
		if n := len(c.view.Snapshots()); n != c.snapshots {
			t.Errorf("%s: %d snapshots, want %d", c.name, n, c.snapshots)
		}
		if n := len(c.view.Workspaces()); n != c.workspaces {
			t.Errorf("%s: %d workspaces, want %d", c.name, n, c.workspaces)
		}
		if n := len(c.view.Volumes()); n != c.volumes {
			t.Errorf("%s: %d volumes, want %d", c.name, n, c.volumes)
		}
	}
	if n := len(h.IDs()); n != 4 {
		t.Errorf("%d ids", n)
	}
	d, err := b.view.Snapshot("p")
	if err != nil || d.Leases != 0 || slices.Contains(d.Dependents, a.tag) {
		t.Errorf("a parent says of others: %+v, %v", d, err)
	}
	if d, err = all.Snapshot("p"); err != nil || d.Leases == 0 {
		t.Errorf("a parent: %+v, %v", d, err)
	}
}

// Methods that do not take the name of an object obey the principal's prefix.
func TestLimits(t *testing.T) {
	h := newHost(t)
	a, b := newPart(t, h, "a"), newPart(t, h, "b")
	all, nobody := h.For(owner.Owner{Name: "token:all"}), h.For(owner.Owner{})
	var limit *owner.PrefixError
	if err := b.view.Limited("metrics"); !errors.As(err, &limit) {
		t.Errorf("what concerns all: %v", err)
	}
	if err := errors.Join(all.Limited("metrics"), all.MayName("name", "a.y"), a.view.MayName("name", "a.y")); err != nil {
		t.Error(err)
	}
	if err := b.view.MayName("name", "a.y"); !errors.As(err, &limit) {
		t.Errorf("a name of others: %v", err)
	}
	if _, err := b.view.CreateWorkspace(t.Context(), "a.y", sandbox.ForkRequest{Tag: "p"}); !errors.As(err, &limit) {
		t.Errorf("a workspace with a name of others: %v", err)
	}
	for _, name := range []string{a.volume, "a.new"} {
		if _, err := b.view.CreateVolume(volume.Request{Name: name, SizeMiB: 16}); !errors.As(err, &limit) {
			t.Errorf("a volume with a name of others: %v", err)
		}
	}
	if _, err := b.view.SnapshotVolume(t.Context(), b.volume, volume.Request{Name: "a.new"}); !errors.As(err, &limit) {
		t.Errorf("a snapshot of a volume with a name of others: %v", err)
	}
	fork := sandbox.ForkRequest{Tag: "p", N: 1, Volumes: []mounts.Mount{{Name: a.volume, Path: "/data"}}}
	if _, err := b.view.Fork(t.Context(), fork); !errors.As(err, new(*volume.Error)) {
		t.Errorf("a fork with a volume of others: %v", err)
	}
	if _, err := nobody.CreateVolume(volume.Request{Name: "new", SizeMiB: 16}); err == nil {
		t.Error("nobody has created a volume")
	}
	if v, err := all.Volume(a.volume); err != nil || all.OwnerOfVolume(v) != "token:a" || a.view.OwnerOfVolume(v) != "" {
		t.Errorf("the owner of a volume: %+v, %v", v, err)
	}
	for _, v := range []*View{b.view, nobody} {
		if _, err := v.Fork(t.Context(), sandbox.ForkRequest{Tag: a.tag, N: 1}); !isMissing(err) {
			t.Errorf("a fork of others: %v", err)
		}
		if tag := v.TagOf(&snapshot.Ref{Tag: a.tag, ID: detail(t, a).ID}); tag != "" {
			t.Errorf("a tag of others: %q", tag)
		}
	}
	if tag := a.view.TagOf(&snapshot.Ref{Tag: a.tag, ID: detail(t, a).ID}); tag != a.tag {
		t.Errorf("its own tag: %q", tag)
	}
	i, err := a.view.Sandbox(a.sandbox)
	if err != nil {
		t.Fatal(err)
	}
	if vcpus, disk := a.view.Machine(i); vcpus == 0 || disk == 0 {
		t.Errorf("a machine with %d vCPUs and %d bytes", vcpus, disk)
	}
	for name, v := range map[string]*View{"": nobody, "owned": h.For(owner.Owner{Name: "token:operator"})} {
		if got := v.OwnerOf(sandbox.Info{Owner: "owned"}); got != name {
			t.Errorf("an owner: %q, want %q", got, name)
		}
	}
	for _, v := range []*View{a.view, h.Permitted(a.sandbox)} {
		if got := v.OwnerOf(i); got != "" {
			t.Errorf("an owner for a client with a part of the host: %q", got)
		}
	}
	if n := a.view.UnnamedBytes(sandbox.Info{}); n != 0 || a.view.BaseImage(snapshot.Base{}) != "" ||
		b.view.LeftAlone() != nil {
		t.Errorf("%d bytes of nothing", n)
	}
}

// Verifying a snapshot needs a whole CPU and the disk. If a client has some verifications in
// progress, its next verification waits, but a verification of another client does not wait.
func TestVerificationsAreFew(t *testing.T) {
	h := newHost(t)
	a, b := h.For(owner.Owner{Name: "token:a"}), h.For(owner.Owner{Name: "token:b"})
	var leave []func()
	for range maxVerifies - 1 {
		done, err := owner.TakePlace(a.as(t.Context()), h.verifies, "")
		if err != nil {
			t.Fatal(err)
		}
		leave = append(leave, done)
	}
	waiting, giveUp := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.VerifySnapshot(waiting, "p") }()
	if err := b.VerifySnapshot(t.Context(), "p"); err != nil {
		t.Errorf("of another client: %v", err)
	}
	giveUp()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("one more of the client: %v, want that it waits", err)
	}
	for _, done := range leave {
		done()
	}
	if err := a.VerifySnapshot(t.Context(), "p"); err != nil {
		t.Errorf("when there are places: %v", err)
	}
}

func detail(t *testing.T, p part) store.Detail {
	t.Helper()
	d, err := p.view.Snapshot(p.tag)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// A follower gets the events of its own principal's sandboxes, and no events of other principals.
func TestEvents(t *testing.T) {
	h := newHost(t)
	a, b := newPart(t, h, "a"), newPart(t, h, "b")
	last := func(v *View) (seen []string) {
		e := v.Events("none") // begins with the oldest stored event
		for {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			next, _, err := e.Next(ctx)
			cancel()
			if err != nil {
				return seen
			}
			seen = append(seen, next.Sandbox)
		}
	}
	if err := errors.Join(a.view.Kill(a.sandbox), b.view.Kill(b.sandbox)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		view       *View
		own, other string
	}{{a.view, a.sandbox, b.sandbox}, {b.view, b.sandbox, a.sandbox}} {
		if seen := last(c.view); !slices.Contains(seen, c.own) || slices.Contains(seen, c.other) {
			t.Errorf("events of %q: want those of %s, and none of %s", seen, c.own, c.other)
		}
	}
	if seen := last(h.For(owner.Owner{})); slices.ContainsFunc(seen, func(id string) bool { return id != "" }) {
		t.Errorf("nobody learns of %q", seen)
	}
}

// A client without a prefix may give a team a branch of another team's sandbox. The team learns
// neither the id of the sandbox nor the digest of an earlier layer.
func TestGivenBranchNamesNoSandboxOfOthers(t *testing.T) {
	h := newHost(t)
	a, b := newPart(t, h, "a"), newPart(t, h, "b")
	admin := h.For(owner.Owner{Name: "local"})
	events := b.view.Events("")
	branch := sandbox.BranchRequest{Tag: "b.given", Mode: vm.BranchDiff}
	if _, err := admin.Branch(t.Context(), a.sandbox, branch); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		d, err := admin.Snapshot("b.given")
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%+v, %v: no digest of the parent", d, err)
		}
		if d.ParentDigest != "" && d.Branch.SandboxID == a.sandbox {
			break
		}
	}
	d, err := b.view.Snapshot("b.given")
	if err != nil || d.Branch.SandboxID != "" || d.ParentDigest != "" {
		t.Errorf("%+v, %+v, %v", d, d.Branch, err)
	}
	for _, i := range b.view.Snapshots() {
		if i.Branch != nil && i.Branch.SandboxID != "" && i.Branch.SandboxID != b.sandbox {
			t.Errorf("%s names sandbox %s", i.Tag, i.Branch.SandboxID)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		next, _, err := events.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if next.Snapshot != "b.given" {
			continue
		}
		if next.Sandbox != "" {
			t.Errorf("%+v", next)
		}
		break
	}
	if own, err := b.view.Snapshot(b.tag); err != nil || own.Branch.SandboxID != b.sandbox {
		t.Errorf("the team's own: %+v, %v", own.Branch, err)
	}
}
