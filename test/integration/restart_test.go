package integration_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
)

// TestDaemonCrash kills the daemon: sandboxes must not notice, and the next daemon must find them.
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

// TestDaemonCrashWhileForking: children that nobody was told of are ended by the next daemon, whenever the last one died.
func TestDaemonCrashWhileForking(t *testing.T) {
	d := load(t).start(t)
	box := d.fork(t, 1)[0]
	for started := range 5 {
		d.crashWhileForking(t, started)
		d.alive(t, box.ID)
		list, err := d.Sandboxes(d.ctx(t, quietLimit))
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, quietLimit, func() error {
			if n := len(d.vmms(t)); n > len(list)+1 { // one waits in the pool
				return fmt.Errorf("%d VMMs for %d sandboxes", n, len(list))
			}
			return nil
		})
		// Confirmed children have a record before the whole fork is answered; they may live on, and are then ordinary ones.
		for _, s := range list {
			d.alive(t, s.ID)
			if s.ID != box.ID {
				d.kill(t, s)
			}
		}
	}
}

// crashWhileForking ends the daemon when some VMMs of a fork have started, and starts another.
func (d *daemon) crashWhileForking(t *testing.T, started int) {
	t.Helper()
	before := len(d.vmms(t))
	ctx := d.ctx(t, bakeLimit)
	answered := make(chan error, 1)
	go func() {
		_, err := d.Fork(ctx, client.ForkRequest{SnapshotTag: tag, N: 20})
		answered <- err
	}()
	eventually(t, quietLimit, func() error {
		if n := len(d.vmms(t)); n < before+started {
			return fmt.Errorf("%d VMMs, %d before the fork", n, before)
		}
		return nil
	})
	d.crash(t)
	if err := <-answered; err == nil {
		t.Error("a fork that the daemon did not finish succeeded")
	}
	d.launch(t)
}
