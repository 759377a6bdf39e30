package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/apirig"
)

// run05 runs a command line of forkd 0.5 with the daemon of a rig.
func run05(t *testing.T, rig *apirig.Rig, args ...string) (code int, out, errs string) {
	t.Helper()
	t.Setenv("FORKD_URL", rig.URL)
	t.Setenv("FORKD_TOKEN", apirig.Token)
	var o, e bytes.Buffer
	code = Main(args, Stdio{In: strings.NewReader(""), Out: &o, Err: &e})
	return code, o.String(), e.String()
}

// `forkd from-image IMAGE --tag TAG` builds the image with the sizes in its flags.
func TestFromImage(t *testing.T) {
	r, err := imageOf05{disk: 1536, memory: 768}.recipe("python:3.12-slim")
	if err != nil || r.Base != "docker://python:3.12-slim" || r.DiskMiB != 1536 || r.MemoryMiB != 768 {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err := (imageOf05{}).recipe("a"); err != nil || r.DiskMiB == 0 || r.MemoryMiB == 0 {
		t.Errorf("%+v, %v", r, err)
	}
	rig := apirig.Start(t, apirig.Options{})
	if _, err := rig.Bake(t.Context(), rig.Parent); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FORKD_CACHE", "/dev/null/nothing") // makes every build fail
	for want, args := range map[string][]string{
		"a.b\": exists":   {"from-image", "python:3.12-slim", "--tag", rig.Parent.Tag},
		"by a Dockerfile": {"from-image", "python:3.12-slim", "--tag", "x", "--extra", "git"},
		"more than 0":     {"from-image", "python:3.12-slim", "--tag", "x", "--size-mib", "-1"},
	} {
		if code, _, errs := run05(t, rig, args...); code == 0 || !strings.Contains(errs, want) {
			t.Errorf("%v: %d, %s", args, code, errs)
		}
	}
}

// The longest part has the longest bar, and every part has a bar.
func TestBenchChart(t *testing.T) {
	b := &bench05{Spawn: 10, Exec: 5, Branch: 0.01, FanOut: 20, Clean: 40, Total: 75.01, N: 12}
	const want = "spawn 1          10.0 ms  ██████████\nexec              5.0 ms  █████\n" +
		"branch            0.0 ms  █\nfan out 12       20.0 ms  ████████████████████\n" +
		"cleanup          40.0 ms  ████████████████████████████████████████\ntotal            75.0 ms\n"
	if got := b.text(true); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := b.text(false); strings.Contains(got, "█") || strings.Count(got, "\n") != 6 {
		t.Errorf("without a chart:\n%s", got)
	}
	if got := (&bench05{}).text(true); strings.Contains(got, "█") {
		t.Errorf("bars of nothing:\n%s", got)
	}
}

// `forkd bench --tag TAG` prints how long each part took. It leaves no sandboxes or snapshots
// behind, even if a part fails.
func TestBench05(t *testing.T) {
	rig := apirig.Start(t, apirig.Options{Agent: agentHere})
	if _, err := rig.Bake(t.Context(), rig.Parent); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		n    string
		code int
		want string
	}{{"3", 0, "fan out 3"}, {"0", exitUsage, "at least 1"}} {
		code, out, errs := run05(t, rig, "bench", "--tag", rig.Parent.Tag, "-n", c.n)
		if code != c.code || !strings.Contains(out+errs, c.want) {
			t.Errorf("-n %s: %d, %s%s", c.n, code, out, errs)
		}
	}
	code, out, errs := run05(t, rig, "bench", "--tag", rig.Parent.Tag, "-n", "1", "--chart")
	if code != 0 || strings.Count(out, " ms  █") != 5 {
		t.Errorf("--chart: %d, %s%s", code, out, errs)
	}
	if code, _, errs := run05(t, rig, "bench", "--tag", rig.Parent.Tag, "--chart", "-o", "json"); code != exitUsage {
		t.Errorf("--chart -o json: %d, %s", code, errs)
	}
	if code, _, errs := run05(t, rig, "bench", "--tag", "nothing"); code != 1 || !strings.Contains(errs, "nothing") {
		t.Errorf("of no snapshot: %d, %s", code, errs)
	}
	list, err := rig.Sandboxes(t.Context())
	snapshots, err2 := rig.Snapshots(t.Context())
	if err != nil || err2 != nil || len(list) != 0 || len(snapshots) != 1 {
		t.Errorf("left: %+v, %+v, %v, %v", list, snapshots, err, err2)
	}
}
