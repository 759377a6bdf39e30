package integration_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
)

// TestDaemonCrash kills the daemon. The sandboxes must not be affected, and the next daemon must
// find the sandboxes.
func TestDaemonCrash(t *testing.T) {
	d := load(t).start(t)
	boxes := d.fork(t, 3)
	for i, s := range boxes {
		d.value(t, s.ID, fmt.Sprintf("[x := %d, open('/root/note', 'w').write('%d')]", i, i))
	}
	d.sh(t, boxes[0].ID, "(while sleep 0.2; do date >>/root/ticks; done) >/dev/null 2>&1 & echo $! >/root/pid")
	d.crash(t)
	for _, s := range boxes {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", s.PID)); err != nil {
			t.Errorf("the VMM of %s died with the daemon", s.ID)
		}
	}
	d.launch(t)
	d.only(t, boxes...)
	for i, s := range boxes {
		if got := d.value(t, s.ID, "(x, open('/root/note').read())"); got != fmt.Sprintf("(%d, '%d')", i, i) {
			t.Errorf("sandbox %d after the crash: %s", i, got)
		}
	}
	before := strings.Fields(d.sh(t, boxes[0].ID, "kill -0 $(cat /root/pid) && wc -l </root/ticks"))
	d.sh(t, boxes[0].ID, "sleep 2")
	if after := strings.Fields(d.sh(t, boxes[0].ID, "wc -l </root/ticks")); after[0] == before[0] {
		t.Errorf("the background process stands still at %s", after[0])
	}
	if s, err := d.Stats(d.ctx(t, quietLimit), boxes[1].ID); err != nil || s.PID != boxes[1].PID {
		t.Errorf("stats after the crash: %+v, %v", s, err)
	}
	more := d.fork(t, 1)
	d.kill(t, boxes[2])
	d.only(t, boxes[0], boxes[1], more[0])
}

// TestDaemonCrashWhileForking kills the daemon before it has answered a fork. The next daemon must
// have all children of the fork or none, wherever the fork was interrupted.
func TestDaemonCrashWhileForking(t *testing.T) {
	const n = 8
	d := load(t).start(t)
	box := d.fork(t, 1)[0]
	for _, come := range []struct{ vmms, confirmed int }{{0, 0}, {n / 2, 0}, {n - 1, 0}, {0, 1}, {0, n / 2}, {0, n - 1}} {
		d.crashWhileForking(t, n, come.vmms, come.confirmed)
		d.alive(t, box.ID)
		list, err := d.Sandboxes(d.ctx(t, quietLimit))
		if err != nil {
			t.Fatal(err)
		}
		if children := len(list) - 1; children != 0 && children != n {
			t.Errorf("killed when %d had started and %d confirmed: %d of %d children are left", come.vmms, come.confirmed,
				children, n)
		}
		eventually(t, quietLimit, func() error {
			if n := len(d.vmms(t)); n > len(list)+1 { // one VMM waits in the pool
				return fmt.Errorf("%d VMMs for %d sandboxes", n, len(list))
			}
			return nil
		})
		for _, s := range list {
			d.alive(t, s.ID)
			if s.ID != box.ID {
				d.kill(t, s)
			}
		}
	}
}

// crashWhileForking starts a fork of n children. It kills the daemon when the given number of VMMs
// has started, and the given number of children has confirmed its identity. Then it starts another
// daemon.
func (d *daemon) crashWhileForking(t *testing.T, n, vmms, confirmed int) {
	t.Helper()
	before, records := len(d.vmms(t)), len(d.records(t))
	ctx := d.ctx(t, bakeLimit)
	answered := make(chan error, 1)
	go func() {
		_, err := d.Fork(ctx, client.ForkRequest{SnapshotTag: tag, N: n})
		answered <- err
	}()
	eventually(t, bakeLimit, func() error {
		started, written := len(d.vmms(t))-before, len(d.records(t))-records
		if (started < vmms || written < confirmed) && len(answered) == 0 {
			return fmt.Errorf("%d VMMs started, %d children confirmed", started, written)
		}
		return nil
	})
	d.crash(t)
	<-answered // the daemon may have answered before it was killed
	d.launch(t)
}

// records returns the paths of the records of all sandboxes with a VM.
func (d *daemon) records(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(d.run, "vm", "*", "sandbox.json"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}
