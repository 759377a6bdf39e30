package integration_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
)

// identity is what children of one snapshot must not share, as code and as what it prints.
const identity = `
import json, os, random, socket, time, uuid
with open("/dev/urandom", "rb") as f:
    urandom = f.read(16).hex()
print(json.dumps({
    "urandom": urandom, "getrandom": os.getrandom(16).hex(), "random": random.getrandbits(64).__str__(),
    "numpy": str(np.random.randint(2**62)), "uuid4": str(uuid.uuid4()), "hostname": socket.gethostname(),
    "boot_id": open("/proc/sys/kernel/random/uuid").read(), "time": time.time()}))
`

// batch is how many children live at a time, to bound memory.
const batch = 25

// TestUniqueness forks FORKD_CHILDREN (200) children of one snapshot.
func TestUniqueness(t *testing.T) {
	d := load(t).start(t)
	total := envInt(t, "FORKD_CHILDREN", 200)
	seen := make(map[string]map[string]int) // kind → value → child
	var worst time.Duration
	for first := 0; first < total; first += batch {
		boxes := d.fork(t, min(batch, total-first))
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
			// The child looked at its clock at some time between the question and the answer.
			clock := time.UnixMicro(int64(values["time"].(float64) * 1e6))
			worst = max(worst, asked.Sub(clock), clock.Sub(answered))
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
	if worst > time.Second {
		t.Errorf("a child's clock is off by %v", worst)
	}
	t.Logf("%d children; %d kinds of random values and names, all distinct; clocks at most %v beyond the call's bounds",
		total, len(seen), max(worst, 0))
}
