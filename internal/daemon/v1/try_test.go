package v1_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/audit"
)

// tried collects the messages that a client receives during a try.
type tried struct {
	started client.TryStarted
	results map[int]client.TryResult
	order   []int
}

// try sends a request and collects its results.
func (o *tried) try(ctx context.Context, c *client.Client, id string, req client.TryRequest) (client.TryEnd, error) {
	o.results = map[int]client.TryResult{}
	return c.Try(ctx, id, req, func(s client.TryStarted) error {
		o.started = s
		return nil
	}, func(r client.TryResult) error {
		o.results[r.Index], o.order = r, append(o.order, r.Index)
		return nil
	})
}

// wantMetric waits until the metrics of a rig contain a line. The daemon counts a try after its
// client has received the last line.
func wantMetric(t *testing.T, r *apirig.Rig, line string) {
	t.Helper()
	var got []byte
	for deadline := time.Now().Add(30 * time.Second); !bytes.Contains(got, []byte(line)); {
		if time.Now().After(deadline) {
			t.Fatalf("/metrics has no line %s", line)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.URL+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got, err = io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
}

func shells(lines ...string) (each [][]string) {
	for _, line := range lines {
		each = append(each, client.Shell(line))
	}
	return each
}

// wantLeft checks that exactly the given sandboxes exist. It also checks the number of snapshots,
// not counting the parent.
func wantLeft(t *testing.T, r *apirig.Rig, snapshots int, ids ...string) {
	t.Helper()
	list, err := r.Sandboxes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range list {
		got = append(got, s.ID)
	}
	slices.Sort(got)
	ids = slices.Sorted(slices.Values(ids))
	r.Store.Quiesce()
	if have := r.Store.List(); !slices.Equal(got, ids) || r.VMs.Count() != len(ids) || len(have) != 1+snapshots {
		t.Errorf("the sandboxes %v, %d VMs and the snapshots %+v; want %v and %d besides the parent", got, r.VMs.Count(), have,
			ids, snapshots)
	}
}

func TestTry(t *testing.T) {
	r := start(t, apirig.Options{})
	id := fork(t, r, 1)[0].ID
	dir := t.TempDir() // the faked guests use the host's file system
	for _, c := range []struct {
		name   string
		req    client.TryRequest
		winner int // -1: none
		kept   []int
		left   int // number of snapshots after the try
		check  func(*tried) bool
	}{
		{"one command in each child", client.TryRequest{N: 3, Args: client.Shell("echo $FORKD_TRY_INDEX $A"),
			Env: map[string]string{"A": "a"}}, -1, nil, 0, func(o *tried) bool {
			return len(o.started.Sandboxes) == 3 && o.results[2].Exec.Stdout == "2 a\n" &&
				o.results[1].SandboxID == o.started.Sandboxes[1] && o.results[0].MS > 0
		}},
		{"all", client.TryRequest{Each: shells("exit 3", "no-such-command"), Keep: "all"}, -1, []int{0, 1}, 1,
			func(o *tried) bool {
				return o.results[0].Exec.ExitCode == 3 && o.results[1].Exec.ExitCode == 127
			}},
		{"first", client.TryRequest{Each: shells("exit 1", "sleep 100", "echo won"), Keep: "first"}, 2, []int{2}, 1,
			func(o *tried) bool {
				return o.results[2].Exec.Stdout == "won\n" && o.results[1].Stopped && o.results[1].Exec == nil &&
					o.results[1].Error != ""
			}},
		{"no first", client.TryRequest{Each: shells("exit 1", "exit 2"), Keep: "first"}, -1, nil, 0, func(o *tried) bool {
			return o.results[1].Exec.ExitCode == 2
		}},
		{"best", client.TryRequest{Each: shells("echo 3 >"+dir+"/0", "echo 7 >"+dir+"/1; exit 5", "echo x >"+dir+"/2"),
			Judge: client.Shell("cd " + dir + " && echo $FORKD_TRY_EXIT_CODE >code$FORKD_TRY_INDEX && cat $FORKD_TRY_INDEX")},
			1, []int{1}, 1, func(o *tried) bool {
				code, err := os.ReadFile(filepath.Join(dir, "code1"))
				return *o.results[0].Score == 3 && *o.results[1].Score == 7 && o.results[2].Score == nil &&
					strings.Contains(o.results[2].JudgeError, `"x"`) && err == nil && string(code) == "5\n"
			}},
		{"promote", client.TryRequest{Each: shells("exit 1", "exit 0"), Promote: true}, 1, nil, 1,
			func(*tried) bool { return true }},
		{"much output", client.TryRequest{N: 1, Args: client.Shell("head -c 300000 /dev/zero | tr '\\0' x; echo e >&2")},
			-1, nil, 1, func(o *tried) bool {
				x := o.results[0].Exec
				return len(x.Stdout) == 256<<10 && x.StdoutTruncated && x.Stderr == "e\n" && !x.StderrTruncated
			}},
		{"timeout", client.TryRequest{N: 1, Args: []string{"sleep", "100"}, TimeoutSecs: 0.1}, -1, nil, 1,
			func(o *tried) bool { return o.results[0].Exec.TimedOut && o.results[0].Exec.ExitCode == 124 }},
	} {
		var o tried
		end, err := o.try(t.Context(), r.Client, id, c.req)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if !c.check(&o) {
			t.Errorf("%s: %+v", c.name, o)
		}
		left := []string{id}
		for n, i := range c.kept {
			left = append(left, o.started.Sandboxes[i])
			if len(end.Kept) <= n || end.Kept[n].ID != o.started.Sandboxes[i] || end.Kept[n].State != "running" {
				t.Errorf("%s: kept %+v", c.name, end.Kept)
			}
		}
		if winner := end.Winner; (winner == nil) != (c.winner < 0) || winner != nil && *winner != c.winner {
			t.Errorf("%s: winner %v", c.name, winner)
		}
		if p := end.Promoted; (p != nil) != c.req.Promote || p != nil && (p.ID != id || p.State != "running") {
			t.Errorf("%s: promoted %+v", c.name, p)
		}
		wantLeft(t, r, c.left, left...)
		for _, kid := range left[1:] {
			if err := r.Kill(t.Context(), kid); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		}
	}
	wantMetric(t, r, `forkd_tries_total{result="ok"} 7`)
	wantMetric(t, r, `forkd_tries_total{result="no_winner"} 1`)
}

func TestTryIsChecked(t *testing.T) {
	_, url, id := forked(t)
	for body, field := range map[string]string{
		`{}`:                                                "args",
		`{"args":[]}`:                                       "args",
		`{"args":["x"],"n":1,"each":[["y"]]}`:               "args",
		`{"args":["x"]}`:                                    "n",
		`{"args":["x"],"n":65}`:                             "n",
		`{"each":[["x"]],"n":2}`:                            "n",
		`{"each":[["x"],[]]}`:                               "each[1]",
		`{"each":[["x"],["a\u0000"]]}`:                      "each[1][0]",
		`{"args":["x"],"n":1,"keep":"some"}`:                "keep",
		`{"args":["x"],"n":1,"keep":"best"}`:                "judge",
		`{"args":["x"],"n":1,"keep":"first","judge":["y"]}`: "judge",
		`{"args":["x"],"n":1,"judge":[""]}`:                 "judge[0]",
		`{"args":["x"],"n":1,"keep":"all","promote":true}`:  "promote",
		`{"args":["x"],"n":1,"timeout_secs":86401}`:         "timeout_secs",
		`{"args":["x"],"n":1,"mode":"fast"}`:                "mode",
		`{"args":["x"],"n":1,"env":{"":"x"}}`:               "env",
		`{"args":["x"],"n":1,"labels":{"":"x"}}`:            "label",
		`{"args":["x"],"n":1,"colour":1}`:                   "colour",
	} {
		if status, answer := post(t, url+"/v1/sandboxes/"+id+"/try", body); status != http.StatusBadRequest ||
			!strings.HasPrefix(fmt.Sprint(answer["detail"]), field) {
			t.Errorf("%s: %d, %v; want 400 and %s", body, status, answer, field)
		}
	}
	if status, answer := post(t, url+"/v1/sandboxes/sb-none/try", `{"args":["x"],"n":1}`); status != http.StatusNotFound {
		t.Errorf("%d, %v", status, answer)
	}
}

// If the client leaves, neither the children nor the branch stay, whatever the children are doing.
func TestTryWithoutItsClient(t *testing.T) {
	for _, keep := range []string{"all", "first"} {
		r := start(t, apirig.Options{})
		id := fork(t, r, 1)[0].ID
		path := filepath.Join(t.TempDir(), "began")
		begun := make(chan struct{}, 1)
		leave(t, r, "POST /v1/sandboxes/{id}/try", make(chan struct{}), func(ctx context.Context) error {
			_, err := r.Try(ctx, id, client.TryRequest{Each: shells("exit 1", "touch "+path+"; sleep 100"), Keep: keep}, nil,
				func(client.TryResult) error {
					begun <- struct{}{}
					return nil
				})
			return err
		}, func() { <-begun })
		wantLeft(t, r, 0, id)
		wantMetric(t, r, `forkd_tries_total{result="client_left"} 1`)
	}
}

// When the daemon stops, the try ends at once, and its client receives the reason.
func TestTryOfADaemonThatStops(t *testing.T) {
	stopping, stop := context.WithCancel(t.Context())
	r := start(t, apirig.Options{Stopping: stopping})
	id := fork(t, r, 1)[0].ID
	_, err := r.Try(t.Context(), id, client.TryRequest{N: 2, Args: []string{"sleep", "100"}, Keep: "all"},
		func(client.TryStarted) error {
			stop()
			return nil
		}, nil)
	if !client.IsStatus(err, http.StatusServiceUnavailable) || !strings.Contains(err.Error(), "ending") {
		t.Error(err)
	}
	wantLeft(t, r, 0, id)
	wantMetric(t, r, `forkd_tries_total{result="failed"} 1`)
}

// A callback that returns an error ends the try.
func TestTryEndsWithItsCallback(t *testing.T) {
	r := start(t, apirig.Options{})
	id := fork(t, r, 1)[0].ID
	_, err := r.Try(t.Context(), id, client.TryRequest{N: 2, Args: []string{"sleep", "100"}, Keep: "all"},
		func(client.TryStarted) error { return errEnough }, nil)
	if !errors.Is(err, errEnough) {
		t.Error(err)
	}
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if list, err := r.Sandboxes(t.Context()); err != nil || len(list) == 1 {
			break
		}
	}
	wantLeft(t, r, 0, id)
}

// If another client kills a child during a try, the result of this child says so. The commands of
// the other children continue.
func TestTryWithAKilledChild(t *testing.T) {
	r := start(t, apirig.Options{})
	id := fork(t, r, 1)[0].ID
	var o tried
	o.results = map[int]client.TryResult{}
	gate := filepath.Join(t.TempDir(), "gate")
	end, err := r.Try(t.Context(), id, client.TryRequest{Keep: "all",
		Each: shells("sleep 100", "until test -e "+gate+"; do sleep 0.01; done")},
		func(s client.TryStarted) error { return r.Kill(t.Context(), s.Sandboxes[0]) }, func(res client.TryResult) error {
			if o.results[res.Index] = res; res.Index == 0 {
				_, err := r.Exec(t.Context(), id, client.ExecRequest{Args: []string{"touch", gate}})
				return err
			}
			return nil
		})
	killed, other := o.results[0], o.results[1]
	if err != nil || len(end.Kept) != 1 || killed.Exec != nil || killed.Error == "" || other.Exec == nil {
		t.Errorf("%+v, %v; %+v", end, err, o.results)
	}
}

// During a try, another client changes the labels of a child, so the client of the try no longer
// sees the child. The try removes this child nevertheless.
func TestTryWithAChildOfOtherLabels(t *testing.T) {
	w := startTenants(t)
	before, err := w.Sandboxes(t.Context())
	must(t, err)
	gate := filepath.Join(t.TempDir(), "gate")
	end, err := w.b.Try(t.Context(), w.sandbox, client.TryRequest{N: 2,
		Args: client.Shell("until test -e " + gate + "; do sleep 0.01; done")}, func(s client.TryStarted) error {
		_, err := w.ChangeLabels(t.Context(), s.Sandboxes[0], map[string]*string{"team-b/owner": nil})
		return errors.Join(err, os.WriteFile(gate, nil, 0o600))
	}, nil)
	if err != nil || len(end.Kept) != 0 {
		t.Errorf("%+v, %v", end, err)
	}
	after, err := w.Sandboxes(t.Context())
	if err != nil || len(after) != len(before) {
		t.Errorf("%d sandboxes, want %d, %v", len(after), len(before), err)
	}
}

// The audit line of a try names all children, even if none of them stays and the client leaves.
func TestTryIsAudited(t *testing.T) {
	r := start(t, apirig.Options{})
	id := fork(t, r, 1)[0].ID
	made := map[string][]string{}
	for name, args := range map[string]string{"all": `["true"]`, "go": `["sleep","100"]`} {
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.URL+"/v1/sandboxes/"+id+"/try",
			strings.NewReader(`{"n":2,"args":`+args+`}`))
		must(t, err)
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set(audit.RequestIDHeader, name)
		resp, err := http.DefaultClient.Do(req)
		must(t, err)
		defer resp.Body.Close()
		lines := json.NewDecoder(resp.Body)
		var first apiv1.TryEvent
		must(t, lines.Decode(&first))
		made[name] = first.Started.Sandboxes
		if name == "go" {
			leave()
		}
		for last := (apiv1.TryEvent{}); name != "go" && last.End == nil; {
			must(t, lines.Decode(&last))
		}
	}
	lines := auditLines(t, r.AuditLog, len(made))
	if len(lines) != len(made) {
		t.Fatalf("%d lines", len(lines))
	}
	for name, line := range lines {
		var e audit.Entry
		must(t, json.Unmarshal([]byte(line), &e))
		if len(e.Sandboxes) != 2 || !slices.Equal(e.Sandboxes, made[name]) || e.Sandbox != id {
			t.Errorf("%s: %s; want the children %v", name, line, made[name])
		}
	}
}

// If the sandbox cannot take over the winner's state, the winner stays, and the error names the
// winner.
func TestTryWithAPromotionThatFails(t *testing.T) {
	r := start(t, apirig.Options{})
	id := fork(t, r, 1)[0].ID
	gate := filepath.Join(t.TempDir(), "gate")
	var children []string
	_, err := r.Try(t.Context(), id, client.TryRequest{Each: shells("exit 1",
		"until test -e "+gate+"; do sleep 0.01; done"), Promote: true}, func(s client.TryStarted) error {
		children = s.Sandboxes
		return errors.Join(r.Kill(t.Context(), id), os.WriteFile(gate, nil, 0o600))
	}, nil)
	if !client.IsStatus(err, http.StatusNotFound) || !strings.Contains(err.Error(), children[1]+" is kept") {
		t.Error(err)
	}
	wantMetric(t, r, `forkd_tries_total{result="failed"} 1`)
	wantLeft(t, r, 1, children[1])
}
