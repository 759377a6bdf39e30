package tenancy

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/diff"
	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/helpervm"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/proto/diffproto"
	"github.com/forkd/forkd/internal/proto/vm"
)

// newDiffer returns a Differ whose fake VMs have the given guest.
func newDiffer(t *testing.T, h *Host, guest func(*vmfake.VMM, net.Conn)) (*diff.Differ, *vmfake.VMMs) {
	t.Helper()
	vmms, run := vmfake.NewDiffers(guest), filepath.Join(t.TempDir(), "run")
	if err := os.Mkdir(run, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		left, err := os.ReadDir(run)
		if vmms.Count() != 0 || len(left) != 0 || err != nil {
			t.Errorf("%d VMs and %v are left, %v", vmms.Count(), left, err)
		}
	})
	return diff.New(diff.Config{Config: helpervm.Config{VMMs: vmms, RunDir: run, Template: "host"},
		Store: h.manager.Snapshots(), Scratch: t.TempDir(), Room: func(uint64, *os.File) error { return nil },
		Initrd: func(base *os.File) (*os.File, error) { return os.Open(base.Name()) }}), vmms // never read
}

// differs is a guest that reads the request and finds one file.
func differs(_ *vmfake.VMM, conn net.Conn) {
	if _, err := diffproto.ReadRequest(conn); err != nil {
		return
	}
	if err := diffproto.ReadRanges(conn, func(diffproto.Range) error { return nil }); err != nil {
		return
	}
	_ = diffproto.WriteEntry(conn, &diffproto.Entry{Path: "/a", New: diffproto.Node{Type: diffproto.Regular}})
	_ = diffproto.WriteDone(conn, diffproto.Done{Added: 2})
}

// request returns a request for the first ten differences between two sides.
func request(from, to string) DiffRequest {
	return DiffRequest{From: from, To: to, Request: diff.Request{Path: "/", Entries: 10}}
}

// All kinds of snapshots and sandboxes can be compared. A comparison leaves no snapshot and no sandbox
// behind.
func TestDiff(t *testing.T) {
	h := newHost(t)
	v := h.For(owner.Owner{Name: "token:a"})
	d, _ := newDiffer(t, h, differs)
	f, err := v.Fork(t.Context(), sandbox.ForkRequest{Tag: "p", N: 4})
	if err != nil {
		t.Fatal(err)
	}
	id := func(i int) string { return f.Sandboxes[i].ID }
	for tag, mode := range map[string]vm.BranchMode{"disk": vm.BranchDisk, "live": vm.BranchLive} {
		if _, err := v.Branch(t.Context(), id(0), sandbox.BranchRequest{Tag: tag, Mode: mode}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := v.Pause(t.Context(), id(1)); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Suspend(t.Context(), id(2)); err != nil {
		t.Fatal(err)
	}
	tags := func() (tags []string) {
		h.manager.Snapshots().Quiesce()
		for _, s := range v.Snapshots() {
			tags = append(tags, s.Tag)
		}
		return tags
	}
	before := tags()
	for _, c := range []struct {
		from, to, origin string
		memory           bool
	}{
		{"p", "live", "p", true}, {"disk", "live", "disk", false}, {"p", id(0), "p", true}, {"", id(0), "p", true},
		{id(0), id(1), id(0), true}, {id(1), id(2), id(1), true}, {"live", id(3), "live", true},
	} {
		r, err := v.Diff(t.Context(), d, request(c.from, c.to))
		if err != nil {
			t.Errorf("%s to %s: %v", c.from, c.to, err)
			continue
		}
		if r.From != c.origin || len(r.Entries) != 1 || r.Omitted() != 1 || (r.MemoryBytes != nil) != c.memory {
			t.Errorf("%s to %s: %+v", c.from, c.to, r)
		}
		if after := tags(); !slices.Equal(before, after) {
			t.Errorf("%s to %s: snapshots %v, want %v", c.from, c.to, after, before)
		}
		if n := len(h.manager.List()); n != 4 {
			t.Errorf("%s to %s: %d sandboxes, want 4", c.from, c.to, n)
		}
	}
	for i, want := range []sandbox.State{sandbox.Running, sandbox.Paused, sandbox.Suspended, sandbox.Running} {
		if s, err := v.Sandbox(id(i)); err != nil || s.State != want {
			t.Errorf("sandbox %d is %v, want %v, %v", i, s.State, want, err)
		}
	}
	for _, c := range []struct{ from, to, field, word string }{
		{"", "p", "from", "missing"}, {"p", "p", "from", "the same"},
	} {
		var wrong *invalid.Error
		if _, err := v.Diff(t.Context(), d, request(c.from, c.to)); !errors.As(err, &wrong) || wrong.Field != c.field ||
			!strings.Contains(wrong.Reason, c.word) {
			t.Errorf("%q to %q: %v", c.from, c.to, err)
		}
	}
}

// For a team, snapshots and sandboxes of another team do not exist. A team may compare its sandbox with
// the snapshot that the sandbox was forked from, even if the team does not see that snapshot.
func TestDiffOfOthers(t *testing.T) {
	h := newHost(t)
	a, b := newPart(t, h, "a"), newPart(t, h, "b")
	d, vmms := newDiffer(t, h, differs)
	for _, pair := range [][2]string{{a.tag, b.tag}, {b.tag, a.tag}, {a.sandbox, b.sandbox}, {b.sandbox, a.sandbox},
		{"", b.sandbox}, {"p", b.tag}, {"p", "none"}} {
		if _, err := a.view.Diff(t.Context(), d, request(pair[0], pair[1])); !isMissing(err) {
			t.Errorf("%q to %q: %v", pair[0], pair[1], err)
		}
		begin := func(string) io.Writer { t.Error("an export began"); return io.Discard }
		if err := a.view.Export(t.Context(), d, request(pair[0], pair[1]), begin); !isMissing(err) {
			t.Errorf("export of %q to %q: %v", pair[0], pair[1], err)
		}
	}
	for name, v := range map[string]*View{"of nobody": h.For(owner.Owner{}), "of one sandbox": h.Permitted(a.sandbox)} {
		if _, err := v.Diff(t.Context(), d, request("", a.sandbox)); !isMissing(err) {
			t.Errorf("a view %s: %v", name, err)
		}
	}
	if vmms.Spawned != 0 {
		t.Errorf("%d VMs were started", vmms.Spawned)
	}
	if _, err := a.view.Diff(t.Context(), d, request(a.tag, a.sandbox)); err != nil {
		t.Error(err)
	}
	f, err := h.For(owner.Owner{Name: "admin", Admin: true}).Fork(t.Context(), sandbox.ForkRequest{Tag: b.tag, N: 1,
		Labels: map[string]string{"a/given": "yes"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.view.Diff(t.Context(), d, request("", f.Sandboxes[0].ID)); err != nil {
		t.Error(err)
	}
}

// given returns a suspended sandbox that an administrator has forked. A label of the sandbox begins
// with "a/", so a View with this prefix contains the sandbox. The View does not contain the
// snapshot that the sandbox was forked from.
func given(t *testing.T, admin, to *View, tag string) string {
	t.Helper()
	f, err := admin.Fork(t.Context(), sandbox.ForkRequest{Tag: tag, N: 1, Labels: map[string]string{"a/given": "yes"}})
	if err != nil {
		t.Fatal(err)
	}
	id := f.Sandboxes[0].ID
	if _, err := to.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	return id
}

// While a client waits for a VM, the tag of a snapshot may be given to another snapshot that the
// client may not see. That snapshot is not compared.
func TestDiffOfAReusedTag(t *testing.T) {
	h := newHost(t)
	admin, v := h.For(owner.Owner{Name: "admin", Admin: true}), h.For(owner.Owner{Name: "token:a", Prefix: "a/"})
	d, vmms := newDiffer(t, h, differs)
	var ids []string
	for _, of := range []*View{admin, v} {
		f, err := of.Fork(t.Context(), sandbox.ForkRequest{Tag: "p", N: 1})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, f.Sandboxes[0].ID)
		if _, err := of.Suspend(t.Context(), f.Sandboxes[0].ID); err != nil { // allows p to be deleted
			t.Fatal(err)
		}
	}
	_, end, err := d.Begin(v.as(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() {
		_, err := v.Diff(t.Context(), d, request("p", ids[1]))
		failed <- err
	}()
	time.Sleep(200 * time.Millisecond) // by then the comparison waits behind the other comparison of its client
	if err := admin.DeleteSnapshot("p", store.DeleteForce); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Resume(t.Context(), ids[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Branch(t.Context(), ids[0], sandbox.BranchRequest{Tag: "p", Mode: vm.BranchDisk}); err != nil {
		t.Fatal(err)
	}
	end()
	if err := <-failed; !isMissing(err) || vmms.Spawned != 0 {
		t.Errorf("%v, and %d VMs were started", err, vmms.Spawned)
	}
}

// After a suspension, a sandbox names the snapshot that it was forked from only by its tag. If
// another snapshot has this tag by now, the sandbox is not compared with that other snapshot.
func TestDiffWithAnotherOrigin(t *testing.T) {
	h := newHost(t)
	admin, v := h.For(owner.Owner{Name: "admin", Admin: true}), h.For(owner.Owner{Name: "token:a", Prefix: "a/"})
	d, vmms := newDiffer(t, h, differs)
	b := newPart(t, h, "b")
	id := given(t, admin, v, b.tag)
	if _, err := v.Diff(t.Context(), d, request("", id)); err != nil {
		t.Error(err)
	}
	if err := admin.DeleteSnapshot(b.tag, store.DeleteForce); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Diff(t.Context(), d, request("", id)); !isMissing(err) {
		t.Errorf("a deleted origin: %v", err)
	}
	if _, err := b.view.Branch(t.Context(), b.sandbox, sandbox.BranchRequest{Tag: b.tag,
		Mode: vm.BranchDiff}); err != nil {
		t.Fatal(err)
	}
	if err := b.view.Kill(b.sandbox); err != nil { // Cool below works only if no sandbox uses the snapshot
		t.Fatal(err)
	}
	st := h.manager.Snapshots()
	st.Quiesce()
	st.Cool(b.tag)
	other, err := st.Detail(b.tag)
	if err != nil {
		t.Fatal(err)
	}
	n, follow := vmms.Spawned, admin.Events("")
	if _, err := v.Diff(t.Context(), d, request("", id)); !isMissing(err) || vmms.Spawned != n {
		t.Errorf("another origin: %v", err)
	}
	if _, err := os.Stat(filepath.Join(other.Dir, "../../../ram", other.ID)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the memory of the other snapshot was read: %v", err)
	}
	if err := v.Kill(id); err != nil { // the event of this deletion is the last event
		t.Fatal(err)
	}
	for {
		e, _, err := follow.Next(t.Context())
		if err != nil || e.Kind == event.SandboxCreated {
			t.Fatalf("a sandbox was made: %+v, %v", e, err)
		}
		if e.Kind == event.SandboxDeleted {
			break
		}
	}
}

// If a client cannot see the snapshot that its sandbox was forked from, an error about that
// snapshot tells the client only that there is no such snapshot.
func TestDiffWithAHiddenOriginThatFails(t *testing.T) {
	h := newHost(t)
	admin, v := h.For(owner.Owner{Name: "admin", Admin: true}), h.For(owner.Owner{Name: "token:a", Prefix: "a/"})
	d, _ := newDiffer(t, h, differs)
	b := newPart(t, h, "b")
	id := given(t, admin, v, b.tag)
	if err := b.view.Kill(b.sandbox); err != nil { // Cool below works only if no sandbox uses the snapshot
		t.Fatal(err)
	}
	st := h.manager.Snapshots()
	st.Quiesce()
	st.Cool(b.tag)
	origin, err := st.Info(b.tag)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(origin.Dir, snapshot.StateFile)); err != nil {
		t.Fatal(err)
	}
	var missing *store.NotFoundError
	if _, err := v.Diff(t.Context(), d, request("", id)); !errors.As(err, &missing) || missing.Tag != b.tag {
		t.Errorf("%v, want only that it is missing", err)
	}
	var damaged *store.DamagedError
	if _, err := b.view.Diff(t.Context(), d, request("p", b.tag)); !errors.As(err, &damaged) {
		t.Errorf("the error for its owner: %v", err)
	}
}

// If the VM of a comparison fails in any way, the error says how, and nothing is left behind.
func TestDiffOfBadVMs(t *testing.T) {
	entry := &diffproto.Entry{Path: "/a", New: diffproto.Node{Type: diffproto.Regular}}
	for want, guest := range map[string]func(*vmfake.VMM, net.Conn){
		"path: no such": func(_ *vmfake.VMM, c net.Conn) {
			_ = diffproto.WriteRefused(c, &diffproto.RefusedError{Field: "path", Reason: "no such"})
		},
		`mount \x1b[2J`: func(_ *vmfake.VMM, c net.Conn) {
			_ = diffproto.WriteRefused(c, errors.New("mount \x1b[2J"))
		},
		"more than was asked for": func(_ *vmfake.VMM, c net.Conn) {
			go func() { _, _ = io.Copy(io.Discard, c) }()
			for range 11 {
				if diffproto.WriteEntry(c, entry) != nil {
					return
				}
			}
		},
		"a message of kind 9": func(_ *vmfake.VMM, c net.Conn) { _, _ = c.Write([]byte{1, 0, 0, 0, 9}) },
		"unexpected EOF": func(_ *vmfake.VMM, c net.Conn) {
			_, _ = diffproto.ReadRequest(c) // read the whole request; otherwise the sender might fail first
			_ = diffproto.ReadRanges(c, func(diffproto.Range) error { return nil })
			_, _ = c.Write([]byte{1, 0})
		},
		"a message of 4294967": func(_ *vmfake.VMM, c net.Conn) { _, _ = c.Write([]byte{255, 255, 255, 255}) },
		"the guest panicked": func(v *vmfake.VMM, c net.Conn) {
			_, _ = diffproto.ReadRequest(c)
			v.End(vm.Exit{Reason: vm.ExitPanic, Detail: "the guest panicked"})
		},
	} {
		h := newHost(t)
		v := h.For(owner.Owner{Name: "token:a"})
		f, err := v.Fork(t.Context(), sandbox.ForkRequest{Tag: "p", N: 1})
		if err != nil {
			t.Fatal(err)
		}
		d, _ := newDiffer(t, h, guest)
		start := time.Now()
		if _, err := v.Diff(t.Context(), d, request("", f.Sandboxes[0].ID)); err == nil || !strings.Contains(err.Error(),
			want) {
			t.Errorf("%v after %v, want %q", err, time.Since(start), want)
		}
		h.manager.Snapshots().Quiesce()
		if n := len(v.Snapshots()); n != 1 || len(v.Sandboxes()) != 1 {
			t.Errorf("%s: %d snapshots and %d sandboxes, want one each", want, n, len(v.Sandboxes()))
		}
	}
}

// When a daemon starts, it kills the children that an earlier daemon has forked in DiskOf.
func TestChildrenOfAnEarlierDaemon(t *testing.T) {
	h := newHost(t)
	for _, note := range []string{"{\n  \"disk_of\": true}", "", `{"metadata":{"disk_of":true}}`} {
		req := sandbox.ForkRequest{Tag: "p", N: 1, Annotation: json.RawMessage(note)}
		if note == "" {
			req.Annotation = nil
		}
		if _, err := h.manager.Fork(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	New(h.manager, h.workspaces, nil)
	list := h.manager.List()
	if len(list) != 2 {
		t.Errorf("%d sandboxes, want 2", len(list))
	}
	for _, i := range list {
		if isChild(i) {
			t.Error("the child is left")
		}
	}
	// The children that DiskOf forks have the annotation by which isChild recognizes them.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen := make(chan bool, 1)
	go func() {
		for ctx.Err() == nil {
			for _, i := range h.manager.List() {
				if isChild(i) {
					seen <- true
					return
				}
			}
		}
	}()
	for range 100 {
		_, release, err := h.For(owner.Owner{Name: "token:a"}).DiskOf(t.Context(), "p")
		if err != nil {
			t.Fatal(err)
		}
		release()
		if len(seen) > 0 {
			return
		}
	}
	t.Error("no child has the mark")
}
