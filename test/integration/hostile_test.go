package integration_test

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/vmm/bareguest"
)

// hostileSeed is the seed of the attacks' random numbers. With another seed, the attacks differ.
const hostileSeed = 2

// TestHostileRoot attacks the VMM of a Linux guest as root of the guest. There is one sandbox for
// each device, and one for each kind of flood. The daemon and another sandbox continue to work.
// When the attackers have been deleted, no resources of them remain.
func TestHostileRoot(t *testing.T) {
	d := loadDistribution(t).start(t)
	d.cycle(t) // after this cycle, buffers and caches have their final sizes
	before := d.settled(t, nil)
	sibling := d.fork(t, 1)[0]
	sum := d.value(t, sibling.ID,
		`exec("import hashlib, os; held = os.urandom(16 << 20)") or hashlib.sha256(held).hexdigest()`)
	well := func(t *testing.T) {
		t.Helper()
		if got := d.value(t, sibling.ID, "hashlib.sha256(held).hexdigest()"); got != sum {
			t.Errorf("memory of the sibling has checksum %s, want %s", got, sum)
		}
		d.sh(t, sibling.ID, "head -c 1000000 /dev/urandom >/root/f && sync && rm /root/f")
	}
	well(t)
	t.Logf("seed %d", hostileSeed)
	for _, target := range bareguest.Targets() {
		t.Run(target.Name, func(t *testing.T) {
			box := d.fork(t, 1)[0]
			d.attack(t, box.ID, target)
			well(t)
			d.knows(t, box)
			d.kill(t, box)
		})
	}
	for _, f := range floods {
		t.Run(f.name, func(t *testing.T) {
			box := d.fork(t, 1)[0]
			d.sh(t, box.ID, f.script)
			well(t)
			d.alive(t, box.ID) // at most the guest itself is affected, and only for a while
			d.knows(t, box)
			d.kill(t, box)
		})
	}
	d.only(t, sibling)
	d.kill(t, sibling)
	after := d.settled(t, &before)
	before.compare(t, after)
}

// floods are the floods that root can cause with the guest's own drivers.
var floods = []struct{ name, script string }{
	{"streams", `python3 - <<'END'
import socket
for port in range(300):
    s = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
    s.settimeout(5)
    try:
        s.connect((2, port))
        raise SystemExit("the host takes a stream to port %d" % port)
    except OSError:
        pass
END`},
	{"console", `head -c 30000 /dev/urandom >/dev/console`},
}

// attack runs all attacks on a device as root of a sandbox.
func (d *daemon) attack(t *testing.T, id string, target bareguest.Target) {
	t.Helper()
	source, err := os.ReadFile("testdata/hostile.py")
	if err != nil {
		t.Fatal(err)
	}
	const dir = "/run/hostile"
	d.sh(t, id, "mkdir "+dir)
	d.upload(t, id, dir+"/hostile.py", source)
	d.sh(t, id, fmt.Sprintf("cd %[1]s; setsid python3 hostile.py %[1]s %[2]d %[3]d >/dev/console 2>&1 </dev/null & "+
		"while [ ! -e %[1]s/pages ]; do sleep 0.1; done", dir, target.Slot, bareguest.PagesNeeded))
	var pages []uint32
	for _, s := range strings.Fields(d.sh(t, id, "cat "+dir+"/pages")) {
		n, err := strconv.ParseUint(s, 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, uint32(n))
	}
	if len(pages) != bareguest.PagesNeeded {
		t.Fatalf("pages at %x", pages)
	}
	var p bareguest.Program
	for _, a := range bareguest.Attacks(target, pages, hostileSeed) {
		p = append(p, a.Program...)
	}
	d.upload(t, id, dir+"/program.new", p.Encode())
	// Ignore the error: an attack may cut off the stream of this call.
	_, _ = d.Exec(d.ctx(t, quietLimit), id, client.ExecRequest{Args: []string{"mv", dir + "/program.new",
		dir + "/program"}})
	eventually(t, stopLimit, func() error {
		console, err := d.Console(d.ctx(t, quietLimit), id)
		if err != nil {
			return err
		}
		if bytes.Contains(console, []byte("Traceback")) {
			t.Fatalf("the attack failed:\n%s", console)
		}
		if !bytes.Contains(console, []byte(" accesses\n")) && !bytes.Contains(console, []byte(" accesses\r\n")) {
			return fmt.Errorf("the attack is not over; the console ends with:\n%s", console[max(0, len(console)-2000):])
		}
		return nil
	})
}

func (d *daemon) upload(t *testing.T, id, path string, p []byte) {
	t.Helper()
	if err := d.WriteFile(d.ctx(t, quietLimit), id, path, bytes.NewReader(p)); err != nil {
		t.Fatal(err)
	}
}

// knows checks that the daemon knows the true state of a sandbox: either it runs in the same
// process as before, or it has ended with a reason.
func (d *daemon) knows(t *testing.T, box client.Sandbox) {
	t.Helper()
	s, err := d.Sandbox(d.ctx(t, quietLimit), box.ID)
	if err != nil {
		t.Fatal(err)
	}
	if !(s.State == "running" && s.PID == box.PID) && !(s.State == "exited" && s.ExitReason != "") {
		t.Errorf("after the attack: %+v", s)
	}
	t.Logf("%s %s %s", s.State, s.ExitReason, s.ExitDetail)
}
