package integration_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
)

// TestApply applies the file changes of one child to another child of the same parent.
func TestApply(t *testing.T) {
	d := load(t).start(t)
	box := d.fork(t, 1)[0]
	if err := d.WriteFile(d.ctx(t, quietLimit), box.ID, "/root/differing.py", strings.NewReader(differing)); err != nil {
		t.Fatal(err)
	}
	d.differs(t, box.ID, "make", "/root/t", "1", "200")
	d.sh(t, box.ID, "mkdir /root/u /root/gone && echo base >/root/c && echo base >/root/u/own && echo base >/root/gone/x")
	pair, err := d.Fork(d.ctx(t, bakeLimit), client.ForkRequest{SourceID: box.ID, N: 2})
	if err != nil {
		t.Fatal(err)
	}
	from, onto := pair.Sandboxes[0].ID, pair.Sandboxes[1].ID
	apply := func(req client.ApplyRequest) (client.Applied, error) {
		t.Helper()
		req.From = from
		return d.Apply(d.ctx(t, bakeLimit), onto, req)
	}
	// exact lists inodes and times, and so shows every change of a file, even one that was undone.
	// It omits /root/ticks, which a process of remember() writes all the time, and /usr, to which
	// no program here writes.
	exact := func() string {
		return d.sh(t, onto, "find / -xdev -path /usr -prune -o ! -path /root ! -path / ! -path '/tmp*' ! -path '/var/*'"+
			" ! -path /root/ticks"+
			" -printf '%p %i %m %U:%G %s %T@ %l\\n' | sort; find /root -type f ! -name ticks -exec sha256sum {} + | sort")
	}
	unchanged := func(what, before string) {
		t.Helper()
		had := strings.Split(before, "\n")
		for line := range strings.SplitSeq(exact(), "\n") {
			if !slices.Contains(had, line) {
				t.Errorf("%s: %s", what, line)
			}
		}
	}

	// The two sandboxes change different files. A program of the receiving sandbox continues.
	d.remember(t, onto, "kept")
	want := d.differs(t, from, "change", "/root/t", "10", "150")
	d.sh(t, from, "rm -r /root/gone && ln -s ../c /root/u/link && chmod 600 /root/c")
	d.sh(t, onto, "echo onto >/root/u/own && echo onto >/root/new")
	before := exact()
	dry, err := apply(client.ApplyRequest{DryRun: true})
	if err != nil || dry.Applied || dry.Conflicts != 0 || dry.Added == 0 || dry.Changed == 0 || dry.Deleted == 0 {
		t.Fatalf("%+v, %v", dry, err)
	}
	unchanged("a dry run", before)
	if a, err := apply(client.ApplyRequest{}); err != nil || !a.Applied || a.Added != dry.Added ||
		a.Changed != dry.Changed || a.Deleted != dry.Deleted {
		t.Fatalf("%+v, want %+v, %v", a, dry, err)
	}
	wantFiles(t, "after apply", d.differs(t, onto, "list", "/root/t"), want)
	const state = "cd /root && cat u/own new && stat -c %a c && readlink u/link && test ! -e gone && ls -A / | grep -c forkd-apply"
	if got := d.sh(t, onto, state+" || true"); got != "onto\nonto\n600\n../c\n0\n" {
		t.Errorf("after apply: %q", got)
	}
	d.remembers(t, onto, "kept")
	if a, err := apply(client.ApplyRequest{}); err != nil || a.Applied || len(a.Files) != 0 {
		t.Errorf("again: %+v, %v", a, err)
	}

	// A conflict leaves the sandbox as it was.
	d.sh(t, from, "echo from >/root/c && echo from >/root/n")
	d.sh(t, onto, "echo onto >/root/c")
	before = exact()
	_, err = apply(client.ApplyRequest{})
	var problem *client.Error
	if !errors.Is(err, client.ErrApplyConflict) || !errors.As(err, &problem) || len(problem.Conflicts) != 1 ||
		problem.Conflicts[0].Path != "/root/c" || problem.Conflicts[0].From != "changed" {
		t.Errorf("%+v", err)
	}
	unchanged("a conflict", before)
	if a, err := apply(client.ApplyRequest{Prefer: "onto"}); err != nil || !a.Applied || a.Conflicts != 1 {
		t.Errorf("%+v, %v", a, err)
	}
	if got := d.sh(t, onto, "cat /root/c /root/n"); got != "onto\nfrom\n" {
		t.Errorf("with prefer: %q", got)
	}

	// A full disk leaves the sandbox as it was, too.
	d.sh(t, from, "dd if=/dev/urandom of=/root/large bs=1M count=24 status=none && echo full >/root/m")
	d.sh(t, onto, "fallocate -l $(($(df --output=avail -B1 / | tail -1) - (8 << 20))) /root/filler")
	before = exact()
	paths := client.ApplyRequest{Paths: []string{"/root/large", "/root/m"}}
	if _, err := apply(paths); !errors.Is(err, client.ErrNoSpace) {
		t.Errorf("on a full disk: %v", err)
	}
	unchanged("a full disk", before)
	d.sh(t, onto, "rm /root/filler")

	// If the daemon is killed, either all changes are made or none.
	sums := d.sh(t, from, "sha256sum /root/large /root/m")
	old := d.sh(t, onto, "sha256sum /root/large /root/m 2>/dev/null || true")
	for i, wait := range []func(ended chan struct{}){
		func(chan struct{}) { time.Sleep(2 * time.Second) }, // while the disks are compared
		func(ended chan struct{}) { d.applies(t, onto, ended) },
	} {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = apply(paths) // the daemon is killed meanwhile
		}()
		wait(ended)
		d.crash(t)
		<-ended
		d.launch(t)
		var now string
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Second) {
			now = d.sh(t, onto, "sha256sum /root/large /root/m 2>/dev/null; ls -A / | grep forkd-apply || true")
			if now == old || now == sums || time.Now().After(end) {
				break
			}
		}
		if now != old && now != sums {
			t.Errorf("crash %d: %q, want %q or %q", i, now, old, sums)
		}
	}
	if _, err := apply(paths); err != nil {
		t.Error(err)
	}
	if now := d.sh(t, onto, "sha256sum /root/large /root/m"); now != sums {
		t.Errorf("%q, want %q", now, sums)
	}
	d.kill(t, box, pair.Sandboxes[0], pair.Sandboxes[1])
	d.removeBranches(t)
}

// applies waits until a sandbox has the directory in which its agent prepares changes, or until the
// request has ended.
func (d *daemon) applies(t *testing.T, id string, ended chan struct{}) {
	t.Helper()
	for {
		select {
		case <-ended:
			return
		case <-time.After(100 * time.Millisecond):
		}
		r, err := d.Exec(d.ctx(t, quietLimit), id, client.ExecRequest{Args: []string{"/bin/sh", "-c",
			"ls -A / | grep forkd-apply"}})
		if err == nil && r.ExitCode == 0 {
			return
		}
	}
}
