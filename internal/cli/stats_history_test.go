package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
)

func TestStatsOverTime(t *testing.T) {
	rig := apirig.Start(t, apirig.Options{Agent: agentHere})
	if _, err := rig.Bake(t.Context(), rig.Parent); err != nil {
		t.Fatal(err)
	}
	f, err := rig.Fork(t.Context(), client.ForkRequest{SnapshotTag: rig.Parent.Tag, N: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(urlEnv, rig.URL)
	t.Setenv(tokenEnv, apirig.Token)
	run := func(want int, args ...string) (out, errs string) {
		t.Helper()
		var o, e strings.Builder
		args = append([]string{"stats", "--since", "10m"}, args...)
		if code := Main(args, Stdio{In: strings.NewReader(""), Out: &o, Err: &e}); code != want {
			t.Errorf("%q: exit code %d, want %d: %s", args, code, want, e.String())
		}
		return o.String(), e.String()
	}
	id := f.Sandboxes[0].ID
	if _, errs := run(0, id); !strings.Contains(errs, "no history") {
		t.Errorf("before the first sample: %q", errs)
	}
	rig.History.Sample()
	time.Sleep(600 * time.Millisecond) // if the next sample is taken earlier, it does not read the sandbox again
	rig.History.Sample()
	out, errs := run(0, id)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "TIME") || !strings.Contains(lines[1], "48") || errs != "" {
		t.Errorf("%q, %q", out, errs)
	}
	var m client.Metrics
	out, _ = run(0, id, "-o", "json")
	if err := json.Unmarshal([]byte(out), &m); err != nil || m.StepSecs != 1 || len(m.Points) != 1 {
		t.Errorf("%s, %v", out, err)
	}
	run(exitUsage)
	run(exitUsage, id, id)
}
