package integration_test

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
)

// drawVar is an environment variable that makes this test binary draw random numbers in a guest,
// like a user's program.
const drawVar = "FORKD_DRAW"

// drawOnEachLine prints random numbers for each input line. crypto/rand uses the kernel's generator
// through the vDSO, which keeps a part of the generator's state in the memory of the process.
func drawOnEachLine(in io.Reader, out io.Writer) {
	for lines := bufio.NewScanner(in); lines.Scan(); {
		key := make([]byte, 8)
		_, _ = rand.Read(key)
		fmt.Fprintf(out, "{\"crypto/rand\": \"%x\", \"math/rand\": \"%d\"}\n", key, mathrand.Uint64())
	}
}

// ownServers starts two programs from a shell, so that the agent does not manage them. Each program
// has one FIFO for its input and one FIFO for its output. The program opens both FIFOs for reading
// and writing, so its input does not end between requests.
const ownServers = `cd /root
cat >own.py <<'END'
import json, os, random, ssl, sys
for line in sys.stdin:
    print(json.dumps({"ssl": ssl.RAND_bytes(8).hex(), "random": str(random.getrandbits(64)), "getrandom": os.urandom(8).hex()}), flush=True)
END
for name in python go; do
    mkfifo $name.in $name.out
done
setsid python3 own.py <>python.in 1<>python.out 2>/dev/null &
FORKD_DRAW=1 setsid ./draw <>go.in 1<>go.out 2>/dev/null &
for name in python go; do
    echo >$name.in
    head -n 1 $name.out
done`

// endServers kills both servers and waits until they have ended. Without the wait, a branch could
// be made while the servers are ending, and the forks of the branch would contain the servers.
const endServers = `for p in /proc/[0-9]*; do
    case $(tr '\0' ' ' <$p/cmdline 2>/dev/null) in
    "python3 own.py "*|"./draw "*)
        kill -9 ${p#/proc/}
        while [ -d $p ]; do sleep 0.1; done;;
    esac
done`

// drawn sends one request to each server and returns the random numbers in the answers.
func (d *daemon) drawn(t *testing.T, id string) map[string]string {
	t.Helper()
	values := make(map[string]string)
	for line := range strings.Lines(d.sh(t, id,
		`cd /root; for name in python go; do echo >$name.in; head -n 1 $name.out; done`)) {
		if err := json.Unmarshal([]byte(line), &values); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
	}
	return values
}

// TestProgramsOfUsersDrawNumbersOfTheirOwn branches, rolls back and resumes a sandbox in which a
// Python program and a Go program of the user run. Both have used their random number generators
// before.
func TestProgramsOfUsersDrawNumbersOfTheirOwn(t *testing.T) {
	d := load(t).start(t)
	defer d.removeBranches(t)
	source := d.fork(t, 1)[0]
	if u := source.Unique; u == nil || len(u.Repeats)+len(u.Reseeded) > 0 {
		t.Errorf("a sandbox without programs of the user's: %+v", u)
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	d.upload(t, source.ID, "/root/draw", self)
	d.sh(t, source.ID, "chmod 755 /root/draw")
	d.sh(t, source.ID, ownServers)
	d.branchOf(t, source.ID, "own", "live")
	boxes := d.forkOf(t, "own", 2)
	defer d.kill(t, append(boxes, source)...)
	states := map[string]map[string]string{"the source": d.drawn(t, source.ID)}
	for i, s := range boxes {
		knowsPrograms(t, s)
		states[fmt.Sprintf("fork %d", i)] = d.drawn(t, s.ID)
	}
	back, err := d.Rollback(d.ctx(t, bakeLimit), boxes[0].ID, "")
	if err != nil {
		t.Fatal(err)
	}
	knowsPrograms(t, back.Sandbox)
	states["the fork rolled back"] = d.drawn(t, boxes[0].ID)
	if _, err := d.Suspend(d.ctx(t, bakeLimit), boxes[1].ID); err != nil {
		t.Fatal(err)
	}
	resumed, err := d.Resume(d.ctx(t, bakeLimit), boxes[1].ID)
	if err != nil {
		t.Fatal(err)
	}
	knowsPrograms(t, resumed)
	if got := d.drawn(t, boxes[1].ID); len(got) == 0 {
		t.Error("a resumed sandbox draws nothing")
	}
	differ(t, states)
	d.strictRefuses(t, source, boxes[1])
}

// knowsPrograms checks what the daemon reports about the two programs.
func knowsPrograms(t *testing.T, s client.Sandbox) {
	t.Helper()
	if s.Unique == nil {
		t.Fatalf("%s has no report", s.ID)
	}
	t.Logf("%s: %+v", s.ID, *s.Unique)
	named := func(list []client.Generator, library string) bool {
		return slices.ContainsFunc(list, func(g client.Generator) bool { return strings.Contains(g.Library, library) })
	}
	if !named(s.Unique.Reseeded, "libcrypto") {
		t.Errorf("%s: OpenSSL is not among the reseeded", s.ID)
	}
	for _, library := range []string{"python: random", "go: math/rand"} {
		if !named(s.Unique.Repeats, library) {
			t.Errorf("%s: %s is not among those that repeat", s.ID, library)
		}
	}
}

// differ compares the numbers that the copies have drawn. A generator that the daemon reports as
// repeating must repeat. This proves that the other generators differ because they were reseeded.
func differ(t *testing.T, states map[string]map[string]string) {
	t.Helper()
	seen := make(map[string]map[string]bool)
	for who, drawn := range states {
		t.Logf("%s: %v", who, drawn)
		for kind, value := range drawn {
			if seen[kind] == nil {
				seen[kind] = make(map[string]bool)
			}
			seen[kind][value] = true
		}
	}
	for kind, want := range map[string]int{"ssl": len(states), "getrandom": len(states), "crypto/rand": len(states),
		"random": 1, "math/rand": 1} {
		if len(seen[kind]) != want {
			t.Errorf("%s: %d different values in %d copies, want %d", kind, len(seen[kind]), len(states), want)
		}
	}
}

// strictRefuses checks that a strict fork and a strict resume are refused if the programs of
// ownServers run in the sandbox. Without these programs, a strict fork succeeds.
func (d *daemon) strictRefuses(t *testing.T, source, suspended client.Sandbox) {
	t.Helper()
	_, err := d.Fork(d.ctx(t, bakeLimit), client.ForkRequest{SnapshotTag: "own", N: 1, Unique: "strict"})
	if err == nil || !client.IsStatus(err, 409) || !strings.Contains(err.Error(), "python: random") {
		t.Errorf("a strict fork: %v", err)
	}
	if _, err := d.Suspend(d.ctx(t, bakeLimit), suspended.ID); err != nil {
		t.Fatal(err)
	}
	_, err = d.ResumeWith(d.ctx(t, bakeLimit), suspended.ID, client.ResumeRequest{Unique: "strict"})
	if err == nil || !client.IsStatus(err, 409) {
		t.Errorf("a strict resume: %v", err)
	}
	s, err := d.ResumeWith(d.ctx(t, bakeLimit), suspended.ID, client.ResumeRequest{Unique: "report"})
	if err != nil || s.State != "running" {
		t.Errorf("the resume after that: %+v, %v", s, err)
	}
	d.sh(t, source.ID, endServers)
	d.branchOf(t, source.ID, "quiet", "live")
	f, err := d.Fork(d.ctx(t, bakeLimit), client.ForkRequest{SnapshotTag: "quiet", N: 1, Unique: "strict"})
	if err != nil {
		t.Fatalf("a strict fork without programs: %v", err)
	}
	d.kill(t, f.Sandboxes...)
}
