package integration_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/vmtest"
)

// identity is code that prints values that must differ between the children of a snapshot.
const identity = `
import json, os, random, socket, time, uuid
with open("/dev/urandom", "rb") as f:
    urandom = f.read(16).hex()
print(json.dumps({
    "urandom": urandom, "getrandom": os.getrandom(16).hex(), "random": random.getrandbits(64).__str__(),
    "numpy": str(np.random.randint(2**62)), "uuid4": str(uuid.uuid4()), "hostname": socket.gethostname(),
    "uuid": open("/proc/sys/kernel/random/uuid").read(), "boot_id": open("/proc/sys/kernel/random/boot_id").read(),
    "machine_id": open("/etc/machine-id").read(), "time": time.time()}))
assert socket.gethostbyname("localhost") == "127.0.0.1" and socket.gethostbyname(socket.gethostname()) == "127.0.1.1"
`

// batch is the number of children that exist at the same time. It bounds the memory of the
// children.
const batch = 25

// children is the number of children of TestUniqueness. On an emulated CPU there are fewer: two
// batches, because children of the same request and of different requests must differ.
const children, emulatedChildren = 100, 2 * batch

// TestUniqueness forks FORKD_CHILDREN children of one snapshot.
func TestUniqueness(t *testing.T) {
	d := load(t).start(t)
	total := children
	if vmtest.Emulated() {
		total = emulatedChildren
	}
	total = envInt(t, "FORKD_CHILDREN", total)
	seen := make(map[string]map[string]int) // kind → value → child
	var worst time.Duration
	for first := 0; first < total; first += batch {
		forked := time.Now()
		boxes := d.fork(t, min(batch, total-first))
		slack := max(time.Second, time.Since(forked)) // the daemon sets the clock of a child during the fork
		for i, s := range boxes {
			asked := time.Now()
			r, err := d.Eval(d.ctx(t, quietLimit), s.ID, client.EvalRequest{Code: identity})
			answered := time.Now()
			if err != nil || r.Error != "" {
				t.Fatalf("child %d: %+v, %v", first+i, r, err)
			}
			values := make(map[string]any)
			if err := json.Unmarshal([]byte(r.Stdout), &values); err != nil {
				t.Fatalf("child %d: %v in %q", first+i, err, r.Stdout)
			}
			// The child read its clock after the request was sent and before the answer arrived.
			clock := time.UnixMicro(int64(values["time"].(float64) * 1e6))
			off := max(asked.Sub(clock), clock.Sub(answered))
			if off > slack {
				t.Errorf("child %d: its clock is off by %v", first+i, off)
			}
			worst = max(worst, off)
			delete(values, "time")
			if values["hostname"] != s.Hostname {
				t.Errorf("child %d calls itself %v, the daemon %s", first+i, values["hostname"], s.Hostname)
			}
			for kind, v := range values {
				if seen[kind] == nil {
					seen[kind] = make(map[string]int)
				}
				if other, twice := seen[kind][v.(string)]; twice {
					t.Errorf("children %d and %d have the same %s: %v", other, first+i, kind, v)
				}
				seen[kind][v.(string)] = first + i
			}
		}
		d.kill(t, boxes...)
	}
	t.Logf("%d children; %d kinds of random values and names, all distinct; clocks at most %v beyond the call's bounds",
		total, len(seen), max(worst, 0))
}

// warmGenerators uses every random number generator that keeps its state in the interpreter's
// memory. Its function draw() prints numbers of these generators.
const warmGenerators = `
import ctypes, json, random, sqlite3, ssl, tempfile, uuid
import numpy as np
libcrypto = ctypes.CDLL("libcrypto.so.3")
db = sqlite3.connect(":memory:")
def draw():
    buf = ctypes.create_string_buffer(8)
    assert libcrypto.RAND_bytes(buf, 8) == 1
    return {
        "random": random.getrandbits(64), "numpy": int(np.random.randint(2**62)), "uuid1": str(uuid.uuid1()),
        "ssl": ssl.RAND_bytes(8).hex(), "libcrypto": buf.raw.hex(), "tempfile": next(tempfile._get_candidate_names()),
        "sqlite": db.execute("select hex(randomblob(8))").fetchone()[0],
    }
draw()
`

// TestSiblingsOfABranchDrawDifferentKeys branches a sandbox whose interpreter has used its random
// number generators.
func TestSiblingsOfABranchDrawDifferentKeys(t *testing.T) {
	d := load(t).start(t)
	defer d.removeBranches(t)
	source := d.fork(t, 1)[0]
	d.value(t, source.ID, warmGenerators+"1")
	d.branchOf(t, source.ID, "warm", "live")
	siblings := append(d.forkOf(t, "warm", 2), source)
	defer d.kill(t, siblings...)
	seen := make(map[string]string) // kind and value → sandbox
	for _, s := range siblings {
		r, err := d.Eval(d.ctx(t, quietLimit), s.ID, client.EvalRequest{Code: "print(json.dumps(draw()))"})
		if err != nil || r.Error != "" {
			t.Fatalf("%s: %+v, %v", s.ID, r, err)
		}
		drawn := make(map[string]any)
		if err := json.Unmarshal([]byte(r.Stdout), &drawn); err != nil {
			t.Fatalf("%s: %v in %q", s.ID, err, r.Stdout)
		}
		for kind, v := range drawn {
			key := fmt.Sprint(kind, " ", v)
			if other, twice := seen[key]; twice {
				t.Errorf("%s and %s both drew %s", other, s.ID, key)
			}
			seen[key] = s.ID
		}
	}
	if want := 7 * len(siblings); len(seen) != want {
		t.Errorf("%d values of %d are distinct", len(seen), want)
	}
}

// TestForkHooks forks two branches. Each has a program in /etc/forkd/fork.d, and the program of the
// second branch fails.
func TestForkHooks(t *testing.T) {
	d := load(t).start(t)
	defer d.removeBranches(t)
	source := d.fork(t, 1)[0]
	defer d.kill(t, source)
	d.sh(t, source.ID, `mkdir -p /etc/forkd/fork.d
printf '#!/bin/sh\nhostname >/root/forked\n' >/etc/forkd/fork.d/10-note
chmod +x /etc/forkd/fork.d/10-note`)
	d.branchOf(t, source.ID, "hooked", "live")
	for _, s := range d.forkOf(t, "hooked", 2) {
		if got := d.sh(t, s.ID, "cat /root/forked"); got != s.Hostname+"\n" {
			t.Errorf("the hook of %s saw the host name %q", s.Hostname, got)
		}
		d.kill(t, s)
	}
	d.sh(t, source.ID, `printf '#!/bin/sh\necho no licence left; exit 1\n' >/etc/forkd/fork.d/20-licence
chmod +x /etc/forkd/fork.d/20-licence`)
	d.branchOf(t, source.ID, "refusing", "live")
	r, err := d.Fork(d.ctx(t, bakeLimit), client.ForkRequest{SnapshotTag: "refusing", N: 1})
	if err == nil || !strings.Contains(err.Error(), "20-licence: exit status 1: no licence left") {
		t.Errorf("a fork whose hook fails: %+v, %v", r, err)
	}
	d.only(t, source)
}

// TestACommandOutOfMemoryIsCalledThat runs a command that allocates all memory of its guest. The
// result must say that the command ran out of memory. The minimal kernel does not count commands
// that end in this way.
func TestACommandOutOfMemoryIsCalledThat(t *testing.T) {
	d := loadDistribution(t).start(t)
	box := d.fork(t, 1)[0]
	defer d.kill(t, box)
	r, err := d.Exec(d.ctx(t, bakeLimit), box.ID, client.ExecRequest{Args: []string{"tail", "/dev/zero"},
		TimeoutSecs: 600})
	if err != nil || r.ExitCode != 137 || !strings.Contains(r.Status, "ran out of memory") {
		t.Errorf("%+v, %v", r, err)
	}
}
