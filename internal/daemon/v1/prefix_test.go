package v1_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/apitest"
	"github.com/forkd/forkd/internal/daemon/auth"
)

// tenants has two tokens, "a" and "b", with different label prefixes, and the objects that belong
// to b.
type tenants struct {
	*apirig.Rig
	a, b      *client.Client
	sandbox   string   // id of the sandbox of b
	tags      []string // of the branches of the sandbox
	workspace string
	within    string // the sandbox of the workspace
}

func startTenants(t *testing.T) *tenants {
	t.Helper()
	a, b := auth.Token{Name: "a", Scope: auth.Run, Prefix: "team-a/"},
		auth.Token{Name: "b", Scope: auth.Run, Prefix: "team-b/"}
	w := &tenants{Rig: start(t, apirig.Options{Tokens: []auth.Token{a, b}}), tags: []string{"team-b.one", "plain"},
		workspace: "team-b.ws"}
	w.a, w.b = w.as(t, "a"), w.as(t, "b")
	must(t, second(w.Bake(t.Context(), w.Parent)))
	f, err := w.b.Fork(t.Context(), client.ForkRequest{SnapshotTag: "a.b", N: 1,
		Labels: map[string]string{"team-b/job": "7"}})
	must(t, err)
	w.sandbox = f.Sandboxes[0].ID
	must(t, second(w.b.Branch(t.Context(), w.sandbox, client.BranchRequest{Tag: w.tags[0], Mode: "diff"})))
	// The second branch is made by an admin.
	must(t, second(w.Branch(t.Context(), w.sandbox, client.BranchRequest{Tag: w.tags[1], Mode: "diff"})))
	ws, err := w.b.CreateWorkspace(t.Context(), client.WorkspaceRequest{Name: w.workspace, SnapshotTag: "a.b"})
	must(t, err)
	w.within = ws.LiveSandboxID
	return w
}

func (w *tenants) as(t *testing.T, token string) *client.Client {
	t.Helper()
	cl, err := client.New(w.URL, w.Tokens[token])
	must(t, err)
	return cl
}

// Only clients without a prefix see the names of owners.
func TestOwnersOfSandboxes(t *testing.T) {
	w := startTenants(t)
	if s, err := w.Sandbox(t.Context(), w.sandbox); err != nil || s.Owner != "token:b" {
		t.Errorf("for the admin: %q, %v", s.Owner, err)
	}
	if s, err := w.b.Sandbox(t.Context(), w.sandbox); err != nil || s.Owner != "" {
		t.Errorf("for b: %q, %v", s.Owner, err)
	}
	list, err := w.b.Sandboxes(t.Context())
	if err != nil || len(list) != 2 || list[0].Owner != "" || list[1].Owner != "" {
		t.Errorf("the list for b: %+v, %v", list, err)
	}
}

// A description does not name branches of another tenant's sandbox.
func TestBranchesOfOthersAreNotNamed(t *testing.T) {
	w := startTenants(t)
	ctx := t.Context()
	if s, err := w.Sandbox(ctx, w.sandbox); err != nil || s.LatestTag != w.tags[1] {
		t.Errorf("for the admin: %q, %v; want %s", s.LatestTag, err, w.tags[1])
	}
	if s, err := w.b.Sandbox(ctx, w.sandbox); err != nil || s.LatestTag != "" {
		t.Errorf("for b: %q, %v; want nothing", s.LatestTag, err)
	}
	s, err := w.b.Branch(ctx, w.sandbox, client.BranchRequest{Tag: "team-b.two"})
	if err != nil || s.After != "" {
		t.Errorf("for b: after %q, %v; want nothing", s.After, err)
	}
	if s, err := w.b.Sandbox(ctx, w.sandbox); err != nil || s.LatestTag != "team-b.two" {
		t.Errorf("for b: %q, %v; want its own", s.LatestTag, err)
	}
	if s, err := w.Snapshot(ctx, "team-b.two"); err != nil || s.After != w.tags[1] {
		t.Errorf("for the admin: after %q, %v; want %s", s.After, err, w.tags[1])
	}
}

func second[T any](_ T, err error) error { return err }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ask sends a request with a tenant's token.
func (w *tenants) ask(t *testing.T, token, method, path, body string) (status int, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, w.URL+path, strings.NewReader(body))
	must(t, err)
	req.Header.Set("Authorization", "Bearer "+w.Tokens[token])
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	defer resp.Body.Close()
	p, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp.StatusCode, string(p)
}

// Only clients without a prefix see the sandboxes that a new daemon could not take over.
func TestLeftAlone(t *testing.T) {
	id := "sb-" + strings.Repeat("a", 26)
	r := start(t, apirig.Options{Damaged: id, Tokens: []auth.Token{{Name: "a", Scope: auth.Run, Prefix: "team-a/"}}})
	v, err := r.Version(t.Context())
	must(t, err)
	if len(v.LeftAlone) != 1 || v.LeftAlone[0].ID != id || v.LeftAlone[0].PID != 0 || v.LeftAlone[0].Reason == "" {
		t.Errorf("without a prefix: %+v", v.LeftAlone)
	}
	a, err := client.New(r.URL, r.Tokens["a"])
	must(t, err)
	if v, err := a.Version(t.Context()); err != nil || len(v.LeftAlone) != 0 {
		t.Errorf("with a prefix: %+v, %v", v.LeftAlone, err)
	}
}

// An object outside a client's prefix and an object that does not exist get the same answers from
// every route.
func TestPrefixHides(t *testing.T) {
	w := startTenants(t)
	never := strings.NewReplacer("0", "1", "1", "2", "2", "3", "3", "0", "a", "c", "c", "a").Replace(w.sandbox)
	type twins struct{ there, absent string }
	names := map[string][]twins{
		"{id}":   {{w.sandbox, never}, {w.within, never}},
		"{tag}":  {{w.tags[0], "team-b.two"}, {w.tags[1], "pla1n"}},
		"{name}": {{w.workspace, "team-b.no"}},
	}
	same := func(method, there, absent, bodyThere, bodyAbsent string, t2 twins) {
		t.Helper()
		status1, answer1 := w.ask(t, "a", method, there, bodyThere)
		status2, answer2 := w.ask(t, "a", method, absent, bodyAbsent)
		if status1 != status2 || strings.ReplaceAll(answer1, t2.there, t2.absent) != answer2 || status1 < 400 {
			t.Errorf("%s %s %s: %d %s\nbut for what is not there: %d %s", method, there, bodyThere, status1, answer1, status2,
				answer2)
		}
	}
	tried := 0
	for _, route := range apitest.Routes(t) {
		method, path, _ := strings.Cut(route, " ")
		for part, all := range names {
			if !strings.Contains(path, part) {
				continue
			}
			tried++
			for _, pair := range all {
				at := func(name string) string {
					return strings.NewReplacer(part, name, "{port}", "80", "{pid}", "1", "{path}", "x").Replace(path)
				}
				same(method, at(pair.there), at(pair.absent), "{}", "{}", pair)
			}
		}
	}
	if tried < 40 {
		t.Errorf("only %d routes name something", tried)
	}
	f, err := w.a.Fork(t.Context(), client.ForkRequest{SnapshotTag: "a.b", N: 1})
	must(t, err)
	own := "/v1/sandboxes/" + f.Sandboxes[0].ID
	for _, pair := range append(names["{tag}"], twins{w.sandbox, never}) {
		for path, body := range map[string]string{
			"/v1/forks":       `{"snapshot_tag": "NAME"}`,
			"/v1/sandboxes":   `{"source_id": "NAME"}`,
			"/v1/workspaces":  `{"name": "team-a.w", "snapshot_tag": "NAME"}`,
			own + "/rollback": `{"to": "NAME"}`,
			own + "/branch":   `{"tag": "team-a.x", "mode": "diff", "parent_tag": "NAME"}`,
		} {
			same("POST", path, path, strings.ReplaceAll(body, "NAME", pair.there), strings.ReplaceAll(body, "NAME", pair.absent),
				pair)
		}
		same("GET", "/templates/"+pair.there, "/templates/"+pair.absent, "", "", pair)
		same("GET", "/templates/aliases/"+pair.there, "/templates/aliases/"+pair.absent, "", "", pair)
	}
	for _, route := range []string{"GET ", "DELETE ", "POST /connect", "POST /resume", "POST /pause", "POST /timeout",
		"POST /fork", "POST /snapshots", "GET /metrics", "GET /logs"} {
		method, rest, _ := strings.Cut(route, " ")
		same(method, "/sandboxes/"+w.sandbox+rest, "/sandboxes/"+never+rest, "{}", "{}", twins{w.sandbox, never})
	}
	if status, answer := w.ask(t, "a", "GET", "/metrics", ""); status != http.StatusForbidden {
		t.Errorf("metrics of all sandboxes: %d %s", status, answer)
	}
	for _, path := range []string{"/v1/sandboxes", "/v1/snapshots", "/v1/snapshots/a.b/info", "/v1/workspaces",
		"/sandboxes", "/v2/sandboxes", "/snapshots", "/templates",
		"/sandboxes/metrics?sandbox_ids=" + w.sandbox} {
		status, answer := w.ask(t, "a", "GET", path, "")
		if status != http.StatusOK || strings.Contains(answer, "team-b") || strings.Contains(answer, w.sandbox) ||
			strings.Contains(answer, w.within) || strings.Contains(answer, "plain") {
			t.Errorf("%s: %d %s", path, status, answer)
		}
	}
	list, err := w.a.Snapshots(t.Context())
	if err != nil || len(list) != 1 || list[0].Tag != "a.b" || list[0].Sandboxes != 0 {
		t.Errorf("snapshots: %+v, %v", list, err)
	}
	if s, err := w.b.Sandbox(t.Context(), w.sandbox); err != nil || s.State != "running" {
		t.Errorf("after all that: %+v, %v", s, err)
	}
}

// A client with a prefix receives only events within the prefix.
func TestPrefixOfEvents(t *testing.T) {
	w := startTenants(t)
	f, err := w.a.Fork(t.Context(), client.ForkRequest{SnapshotTag: "a.b", N: 1})
	must(t, err)
	id := f.Sandboxes[0].ID
	must(t, second(w.a.Branch(t.Context(), id, client.BranchRequest{Tag: "team-a.t", Mode: "diff"})))
	must(t, w.b.Kill(t.Context(), w.sandbox))
	must(t, w.a.Kill(t.Context(), id))
	var kinds []string
	for _, e := range follow(t, w.a, client.EventsRequest{After: "none"}, "sandbox.deleted") {
		kinds = append(kinds, e.Type)
		if e.SandboxID != id && e.SandboxID != "" || strings.Contains(e.SnapshotTag, "team-b") {
			t.Errorf("event %+v", e)
		}
	}
	kinds = slices.DeleteFunc(kinds, func(k string) bool { return k == "snapshot.persisted" }) // may arrive at any time
	if want := []string{"missed", "sandbox.created", "snapshot.created", "sandbox.deleted"}; !slices.Equal(kinds, want) {
		t.Errorf("%v, want %v", kinds, want)
	}
}

// The records of events name nothing that the client may not see, even if another client has already
// received the same event.
func TestPrefixOfRecords(t *testing.T) {
	w := startTenants(t)
	for name, cl := range map[string]*client.Client{"team-a/job": w.a, "team-b/job": w.b} { // one deletion per client
		f, err := cl.Fork(t.Context(), client.ForkRequest{SnapshotTag: "a.b", N: 1, Labels: map[string]string{name: "8"}})
		must(t, err)
		must(t, cl.Kill(t.Context(), f.Sandboxes[0].ID))
	}
	records := func(cl *client.Client) (boxes []client.Sandbox, tags []string) {
		for _, e := range follow(t, cl, client.EventsRequest{After: "none", Records: true}, "sandbox.deleted") {
			if e.Type == "sandbox.created" && e.Sandbox != nil && e.SandboxID == w.sandbox {
				boxes = append(boxes, *e.Sandbox)
			}
			if e.Snapshot != nil {
				tags = append(tags, e.Snapshot.Tag)
			}
		}
		return boxes, tags
	}
	if boxes, tags := records(w.Client); len(boxes) != 1 || boxes[0].Owner != "token:b" || boxes[0].LatestTag != "plain" ||
		!slices.Equal(tags, []string{"a.b", "team-b.one", "plain"}) {
		t.Errorf("for the admin: %+v, %v", boxes, tags)
	}
	if boxes, tags := records(w.b); len(boxes) != 1 || boxes[0].Owner != "" || boxes[0].LatestTag != "" ||
		!slices.Equal(tags, []string{"team-b.one"}) {
		t.Errorf("for b: %+v, %v", boxes, tags)
	}
	if boxes, tags := records(w.a); len(boxes) != 0 || len(tags) != 0 {
		t.Errorf("for a: %+v, %v", boxes, tags)
	}
}

// If a token has a prefix, the labels that its client gives a branch must begin with the prefix,
// except labels for turns.
func TestPrefixOfLabelsOfBranches(t *testing.T) {
	w := startTenants(t)
	for i, name := range []string{"team-b/golden", "turn", "turn.by"} {
		s, err := w.b.Branch(t.Context(), w.sandbox, client.BranchRequest{Tag: fmt.Sprintf("team-b.label-%d", i),
			Mode: "diff", Labels: map[string]string{name: "1"}})
		if err != nil || s.Labels[name] != "1" {
			t.Errorf("%q: %v, %v", name, s.Labels, err)
		}
	}
	for _, name := range []string{"team-a/owner", "golden", "turnover", "team-b"} {
		_, err := w.b.Branch(t.Context(), w.sandbox, client.BranchRequest{Tag: "team-b.refused", Mode: "diff",
			Labels: map[string]string{name: "1", "team-b/golden": "1"}})
		var refused *client.Error
		if !errors.As(err, &refused) || refused.Status != http.StatusForbidden || refused.Code != "scope" ||
			!strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), `"team-b/"`) {
			t.Errorf("%q: %v", name, err)
		}
	}
	_, err := w.Branch(t.Context(), w.sandbox, client.BranchRequest{Tag: "golden", Mode: "diff",
		Labels: map[string]string{"golden": "1"}})
	if err != nil {
		t.Errorf("without a prefix: %v", err)
	}
}

// If an admin moves a sandbox to another prefix, the client that had the sandbox before cannot use
// the name of the workspace to reach the sandbox.
func TestWorkspaceOfSandboxTakenAway(t *testing.T) {
	w := startTenants(t)
	must(t, second(w.ChangeLabels(t.Context(), w.within, map[string]*string{"team-b/owner": nil})))
	path := "/v1/workspaces/" + w.workspace
	for _, route := range [][2]string{{"GET", ""}, {"POST", "/suspend"}, {"POST", "/resume"}, {"DELETE", ""}} {
		if status, answer := w.ask(t, "b", route[0], path+route[1], ""); status != http.StatusNotFound {
			t.Errorf("%s: %d %s", route, status, answer)
		}
	}
	if list, err := w.b.Workspaces(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("workspaces: %+v, %v", list, err)
	}
	if _, err := w.Sandbox(t.Context(), w.within); err != nil {
		t.Error(err)
	}
	must(t, w.DeleteWorkspace(t.Context(), w.workspace))
}

// A client with a prefix can use everything within the prefix, and cannot create anything outside.
func TestPrefixHolds(t *testing.T) {
	w := startTenants(t)
	ctx := t.Context()
	f, err := w.a.Fork(ctx, client.ForkRequest{SnapshotTag: "a.b", N: 1})
	must(t, err)
	s := f.Sandboxes[0]
	if s.Labels["team-a/owner"] != "token:a" || len(s.Labels) != 1 {
		t.Errorf("labels that were not asked for: %v", s.Labels)
	}
	if r, err := w.a.Exec(ctx, s.ID, client.ExecRequest{Args: []string{"true"}}); err != nil || r.ExitCode != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	named, err := w.a.Branch(ctx, s.ID, client.BranchRequest{Tag: "team-a.t", Mode: "diff"})
	must(t, err)
	unnamed, err := w.a.Branch(ctx, s.ID, client.BranchRequest{Mode: "diff"})
	if err != nil || !strings.HasPrefix(unnamed.Tag, "team-a.") {
		t.Errorf("%+v, %v", unnamed, err)
	}
	for _, req := range []client.ForkRequest{{SnapshotTag: named.Tag, N: 1}, {SnapshotTag: unnamed.Tag, N: 1},
		{SourceID: s.ID, N: 1},
		{SnapshotTag: "a.b", N: 1, Labels: map[string]string{"team-a/x": ""}}} {
		if f, err := w.a.Fork(ctx, req); err != nil || len(f.Sandboxes[0].Labels) != 1 {
			t.Errorf("%+v: %+v, %v", req, f, err)
		}
	}
	must(t, second(w.a.CreateWorkspace(ctx, client.WorkspaceRequest{Name: "team-a.w", SnapshotTag: "a.b"})))
	must(t, second(w.a.SuspendWorkspace(ctx, "team-a.w")))
	must(t, second(w.a.ResumeWorkspace(ctx, "team-a.w")))
	if list, err := w.a.Workspaces(ctx); err != nil || len(list) != 1 {
		t.Errorf("workspaces: %+v, %v", list, err)
	}
	if list, err := w.a.Sandboxes(ctx); err != nil || len(list) != 6 {
		t.Errorf("%d sandboxes, %v", len(list), err)
	}
	must(t, second(w.a.Rollback(ctx, s.ID, named.Tag)))
	value := "v"
	s, err = w.a.ChangeLabels(ctx, s.ID, map[string]*string{"team-a/owner": nil, "team-a/new": &value})
	if err != nil || len(s.Labels) != 1 {
		t.Errorf("labels: %v, %v", s.Labels, err)
	}

	_, other := w.a.Fork(ctx, client.ForkRequest{SnapshotTag: "a.b", N: 1,
		Labels: map[string]string{"team-b/x": "", "team-a/x": ""}})
	_, outside := w.a.Fork(ctx, client.ForkRequest{SourceID: s.ID, N: 1, Labels: map[string]string{"x": ""}})
	_, last := w.a.ChangeLabels(ctx, s.ID, map[string]*string{"team-a/new": nil})
	_, given := w.a.ChangeLabels(ctx, s.ID, map[string]*string{"team-b/x": &value})
	_, tag := w.a.Branch(ctx, s.ID, client.BranchRequest{Tag: "mine", Mode: "diff"})
	_, taken := w.a.Branch(ctx, s.ID, client.BranchRequest{Tag: w.tags[0], Mode: "diff"})
	_, named2 := w.a.CreateWorkspace(ctx, client.WorkspaceRequest{Name: "team-b.ws", SnapshotTag: "a.b"})
	for name, err := range map[string]error{"label of others": other, "label of nobody": outside, "last label": last,
		"given label":   given,
		"tag of nobody": tag, "tag of others": taken, "name of others": named2} {
		var refused *client.Error
		if !errors.As(err, &refused) || refused.Status != http.StatusForbidden || refused.Code != "scope" ||
			!strings.Contains(err.Error(), `"team-a/"`) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// An admin sees everything, and moves a sandbox to another tenant by changing its labels.
	if list, err := w.Sandboxes(ctx); err != nil || len(list) != 8 {
		t.Errorf("all: %d, %v", len(list), err)
	}
	must(t, second(w.ChangeLabels(ctx, s.ID, map[string]*string{"team-a/new": nil})))
	if _, err := w.a.Sandbox(ctx, s.ID); !client.IsNotFound(err) {
		t.Errorf("out of reach: %v", err)
	}
	// E2B's API itself sets the label that the prefix requires.
	status, answer := w.ask(t, "a", "POST", "/sandboxes", `{"templateID": "a.b"}`)
	var made struct{ SandboxID string }
	if json.Unmarshal([]byte(answer), &made); status != http.StatusCreated {
		t.Fatalf("%d %s", status, answer)
	}
	if s, err := w.a.Sandbox(ctx, made.SandboxID); err != nil || s.Labels["team-a/owner"] == "" {
		t.Errorf("%+v, %v", s, err)
	}
}

// If a parent was baked from the disk of another tenant's snapshot, the description of the parent
// neither names that snapshot nor gives access to it. The description still names snapshots that
// the client may see.
func TestParentsLeadToNoSnapshotOfOthers(t *testing.T) {
	w := startTenants(t)
	ctx := t.Context()
	fork := func(cl *client.Client, tag string) string {
		t.Helper()
		f, err := cl.Fork(ctx, client.ForkRequest{SnapshotTag: tag, N: 1})
		must(t, err)
		return f.Sandboxes[0].ID
	}
	disk := client.BranchRequest{Tag: "team-b.disk", DiskOnly: true}
	must(t, second(w.b.Branch(ctx, fork(w.b, "team-b.one"), disk)))
	must(t, second(w.Bake(ctx, client.BakeRequest{Tag: "pub", From: "team-b.disk"})))
	id := fork(w.a, "pub")
	must(t, second(w.a.Branch(ctx, id, client.BranchRequest{Tag: "team-a.one", Mode: "diff"})))
	for path, named := range map[string]string{"/v1/snapshots/pub/info": "", "/v1/snapshots": `"branched_from":"pub"`,
		"/v1/snapshots/team-a.one/info": `"ancestors":["a.b","pub"]`, "/templates/pub": ""} {
		status, answer := w.ask(t, "a", "GET", path, "")
		if status != http.StatusOK || strings.Contains(answer, "team-b.") || strings.Contains(answer, "plain") ||
			!strings.Contains(answer, named) {
			t.Errorf("%s: %d %s", path, status, answer)
		}
	}
	d, err := w.Snapshot(ctx, "pub")
	if err != nil || d.BranchedFrom != "team-b.disk" || len(d.Ancestors) != 3 || d.ChainDepth != 3 {
		t.Errorf("for the admin: %+v, %v", d, err)
	}
	for tag, code := range map[string]string{"team-b.one": "snapshot_not_found", "team-b.disk": "snapshot_not_found",
		"team-b.none": "snapshot_not_found", "a.b": "not_in_line"} {
		var refused *client.Error
		_, err := w.a.Rollback(ctx, id, tag)
		if !errors.As(err, &refused) || refused.Code != code ||
			code == "not_in_line" && strings.Contains(err.Error(), "team-b") {
			t.Errorf("a rollback to %s: %v", tag, err)
		}
	}
	must(t, second(w.a.Rollback(ctx, id, "pub")))
	must(t, second(w.a.Rollback(ctx, id, "team-a.one")))
}
