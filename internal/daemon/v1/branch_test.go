package v1_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
)

// forked bakes the snapshot a.b and forks one sandbox from it.
func forked(t *testing.T) (cl *client.Client, url, id string) {
	t.Helper()
	cl, url, _, bake := serve(t)
	if _, err := cl.Bake(t.Context(), bake); err != nil {
		t.Fatal(err)
	}
	f, err := cl.Fork(t.Context(), client.ForkRequest{SnapshotTag: "a.b", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	return cl, url, f.Sandboxes[0].ID
}

// post sends a raw body and returns the status and the answer.
func post(t *testing.T, url, body string) (int, map[string]any) {
	t.Helper()
	return request(t, http.MethodPost, url, body)
}

func request(t *testing.T, method, url, body string) (int, map[string]any) {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, answer
}

// Requests in the form of forkd 0.5 have the same effect as in forkd 0.5.
func TestBranchRequests(t *testing.T) {
	_, url, id := forked(t)
	path := url + "/v1/sandboxes/" + id + "/branch"
	for _, c := range []struct {
		body   string
		status int
		mode   string // expected mode if the request succeeds
	}{
		{"", 201, "live"},
		{`{"mode":"diff"}`, 201, "diff"},
		{`{"mode":"full","tag":"f"}`, 201, "full"},
		{`{"mode":"full","tag":"f"}`, 409, ""},
		{`{"diff":true}`, 201, "diff"},
		{`{"measure_diff":true}`, 201, "diff"},
		{`{"live":true}`, 201, "live"},
		{`{"live":true,"wait":false,"tag":"bg"}`, 202, "live"},
		{`{"mode":"live","wait":false,"tag":"bg2"}`, 202, "live"},
		{`{"mode":"diff","parent_tag":"a.b"}`, 201, "diff"},
		{`{"mode":"diff","parent_tag":"other"}`, 400, ""},
		{`{"mode":"full","parent_tag":"a.b"}`, 400, ""},
		{`{"mode":"full","wait":false}`, 201, "full"},
		{`{"mode":"diff","wait":false}`, 201, "diff"},
		{`{"wait":false}`, 202, "live"},
		{`{"diff":true,"measure_diff":true}`, 201, "diff"},
		{`{"diff":true,"measure_diff":true,"wait":false}`, 201, "diff"},
		{`{"live":true,"measure_diff":true}`, 400, ""},
		{`{"mode":"diff","diff":true}`, 400, ""},
		{`{"live":true,"diff":true}`, 400, ""},
		{`{"mode":"warm"}`, 400, ""},
		{`{"mode":"disk"}`, 400, ""},
		{`{"memory":true}`, 201, "live"},
		{`{"memory":false,"mode":"live"}`, 400, ""},
		{`{"memory":false,"diff":true}`, 400, ""},
		{`{"memory":false,"wait":false,"tag":"../x"}`, 400, ""},
		{`{"tag":"../x"}`, 400, ""},
		{`{"tags":"x"}`, 400, ""},
	} {
		status, answer := post(t, path, c.body)
		if status != c.status || c.mode != "" && answer["mode"] != c.mode || c.mode == "" && answer["error"] == "" {
			t.Errorf("%s: %d %v, want %d", c.body, status, answer, c.status)
		}
		if want := map[int]string{201: "ready", 202: "writing"}[status]; want != "" &&
			(answer["status"] != want || answer["pause_ms"] != 3.0 || answer["dirty_bytes"] != 4096.0 ||
				answer["branched_from"] != "a.b") {
			t.Errorf("%s: %v", c.body, answer)
		}
		if c.mode == "diff" && (answer["diff_ms"] != 3.0 || answer["diff_logical_bytes"] != float64(512<<20)) {
			t.Errorf("%s: figures of a diff: %v", c.body, answer)
		}
		if _, there := answer["diff_ms"]; there != (c.mode == "diff") {
			t.Errorf("%s: diff_ms: %v", c.body, answer)
		}
	}
	if status, _ := post(t, url+"/v1/sandboxes/sb-none/branch", ""); status != 404 {
		t.Errorf("an unknown sandbox: %d", status)
	}
}

// A snapshot without memory can be forked like any other. A parent can boot from the disk of any
// snapshot, with or without memory.
func TestDiskOnlyRequests(t *testing.T) {
	cl, url, id := forked(t)
	status, answer := post(t, url+"/v1/sandboxes/"+id+"/branch", `{"memory":false,"tag":"disk"}`)
	if status != 201 || answer["mode"] != "disk" || answer["disk_only"] != true || answer["persist_status"] != "done" ||
		answer["shared_bytes"] != nil {
		t.Fatalf("%d %v", status, answer)
	}
	f, err := cl.Fork(t.Context(), client.ForkRequest{SnapshotTag: "disk", N: 2})
	if err != nil || len(f.Sandboxes) != 2 {
		t.Fatalf("%+v, %v", f, err)
	}
	b, err := cl.Bake(t.Context(), client.BakeRequest{Tag: "large", From: "disk", MemSizeMiB: 1024, VCPUs: 2})
	if err != nil || b.MemSizeMiB != 1024 || b.VCPUs != 2 || b.DiskOnly {
		t.Fatalf("%+v, %v", b, err)
	}
	if _, err := cl.Bake(t.Context(), client.BakeRequest{Tag: "whole", From: "a.b"}); err != nil {
		t.Fatal(err)
	}
	for body, want := range map[string]string{
		`{"tag":"x","from":"none"}`:                 "not found",
		`{"tag":"x","from":"disk","rootfs":"/"}`:    "rootfs",
		`{"tag":"x","from":"../disk"}`:              "from",
		`{"tag":"x","from":"disk","initrd":"/x"}`:   "initrd",
		`{"tag":"x","from":"disk","vcpus":1000000}`: "vcpus",
	} {
		if status, answer := post(t, url+"/v1/snapshots", body); status/100 != 4 ||
			!strings.Contains(answer["error"].(string), want) {
			t.Errorf("%s: %d %v", body, status, answer)
		}
	}
	for _, path := range []string{"/v1/sandboxes/" + id + "/rollback", "/v1/snapshots/disk/compact"} {
		status, answer := post(t, url+path, `{"to":"disk"}`)
		if status != 409 && status != 400 {
			t.Errorf("%s: %d %v", path, status, answer)
		}
	}
	if status, answer := post(t, url+"/v1/snapshots/disk/compact", `{"to":"small"}`); status != 409 ||
		answer["code"] != "snapshot_unusable" {
		t.Errorf("compact: %d %v", status, answer)
	}
}

func TestForkSourceRequests(t *testing.T) {
	cl, url, id := forked(t)
	for body, want := range map[string]int{
		`{"source_id":"` + id + `","snapshot_tag":"a.b"}`: 400,
		`{"n":2}`:                               400,
		`{"snapshot_tag":"a.b","mode":"live"}`:  400,
		`{"source_id":"` + id + `","mode":"x"}`: 400,
		`{"source_id":"` + id + `","n":0}`:      400,
		`{"source_id":"sb-none"}`:               404,
	} {
		if status, answer := post(t, url+"/v1/sandboxes", body); status != want {
			t.Errorf("%s: %d %v, want %d", body, status, answer, want)
		}
	}
	f, err := cl.Fork(t.Context(), client.ForkRequest{SourceID: id, N: 2, Mode: "diff"})
	if err != nil || len(f.Sandboxes) != 2 || f.PauseMS != 3 {
		t.Fatalf("%+v, %v", f, err)
	}
}

// Every operation of the client that changes a sandbox's state has the documented effect.
func TestStatesThroughTheClient(t *testing.T) {
	cl, _, id := forked(t)
	ctx := t.Context()
	b, err := cl.Branch(ctx, id, client.BranchRequest{Tag: "b", NoWait: false})
	if err != nil || b.Tag != "b" || b.BranchedFrom != "a.b" {
		t.Fatalf("%+v, %v", b, err)
	}
	r, err := cl.Rollback(ctx, id, "b")
	if err != nil || r.RolledBackTo != "b" || r.ID != id || r.SnapshotTag != "b" {
		t.Errorf("%+v, %v", r, err)
	}
	child, err := cl.Fork(ctx, client.ForkRequest{SnapshotTag: "b", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	p, err := cl.Promote(ctx, id, client.PromoteRequest{From: child.Sandboxes[0].ID, Tag: "winner"})
	if err != nil || p.RolledBackTo != "winner" || p.ID != id || p.SnapshotTag != "winner" {
		t.Errorf("%+v, %v", p, err)
	}
	for field, req := range map[string]client.PromoteRequest{"from": {}, "mode": {From: "sb-1", Mode: "fast"},
		"tag": {From: "sb-1", Tag: ".b"}, "unique": {From: "sb-1", Unique: "yes"}} {
		if _, err := cl.Promote(ctx, id, req); !client.IsStatus(err, 400) || !strings.Contains(err.Error(), field) {
			t.Errorf("%+v: %v", req, err)
		}
	}
	if _, err := cl.Promote(ctx, id, client.PromoteRequest{From: "sb-none"}); !client.IsStatus(err, 404) {
		t.Errorf("from no sandbox: %v", err)
	}
	if s, err := cl.Pause(ctx, id); err != nil || s.State != "paused" {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := cl.Exec(ctx, id, client.ExecRequest{Args: []string{"true"}}); !client.IsStatus(err, 409) {
		t.Errorf("exec in a paused sandbox: %v", err)
	}
	if s, err := cl.Suspend(ctx, id); err != nil || s.State != "suspended" {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err := cl.Resume(ctx, id); err != nil || s.State != "running" || s.ID != id {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := cl.Rollback(ctx, id, "none"); !client.IsStatus(err, 404) {
		t.Errorf("rollback to nothing: %v", err)
	}
	if s, err := cl.CompactSnapshot(ctx, "a.b", "b"); !client.IsStatus(err, 409) {
		t.Errorf("compact onto a taken tag: %+v, %v", s, err)
	}
}

func TestWorkspaces(t *testing.T) {
	cl, url, _ := forked(t)
	ctx := t.Context()
	w, err := cl.CreateWorkspace(ctx, client.WorkspaceRequest{Name: "w", SnapshotTag: "a.b"})
	if err != nil || w.Status != "running" || w.LiveSandboxID == "" || w.SourceTag != "a.b" {
		t.Fatalf("%+v, %v", w, err)
	}
	if _, err := cl.CreateWorkspace(ctx, client.WorkspaceRequest{Name: "w", SnapshotTag: "a.b"}); !client.IsStatus(err,
		409) {
		t.Errorf("twice: %v", err)
	}
	if status, answer := post(t, url+"/v1/workspaces/w/suspend", `{"diff":true}`); status != 200 ||
		answer["status"] != "suspended" || answer["current_state_tag"] == nil {
		t.Errorf("%d %v", status, answer)
	}
	if w, err = cl.ResumeWorkspace(ctx, "w"); err != nil || w.Status != "running" {
		t.Errorf("%+v, %v", w, err)
	}
	if _, err := cl.SetTTL(ctx, w.LiveSandboxID, 60); !client.IsStatus(err, http.StatusConflict) {
		t.Errorf("an end for its sandbox: %v", err)
	}
	if s, err := cl.SetTTL(ctx, w.LiveSandboxID, 0); err != nil || s.ExpiresAt != 0 {
		t.Errorf("none for its sandbox: %+v, %v", s, err)
	}
	if list, err := cl.Workspaces(ctx); err != nil || len(list) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
	if err := cl.DeleteWorkspace(ctx, "w"); err != nil {
		t.Error(err)
	}
	if _, err := cl.Workspace(ctx, "w"); !client.IsNotFound(err) {
		t.Errorf("deleted: %v", err)
	}
}

// A branch has labels, and its description names the snapshot that the sandbox ran from before the
// branch. The description of the sandbox and its statistics report the bytes written since the
// branch.
func TestLabelsAndOrderOfBranches(t *testing.T) {
	cl, url, id := forked(t)
	ctx := t.Context()
	want := func(when, latest string) {
		t.Helper()
		s, err := cl.Sandbox(ctx, id)
		if err != nil || s.LatestTag != latest || s.Calls == nil || *s.Calls != 0 {
			t.Errorf("%s: %q, %v, %v; want %q without a call", when, s.LatestTag, s.Calls, err, latest)
		}
	}
	want("forked", "a.b")
	for _, tag := range []string{"b1", "b2"} {
		s, err := cl.Branch(ctx, id, client.BranchRequest{Tag: tag, Labels: map[string]string{"turn": tag}})
		if err != nil || s.Labels["turn"] != tag {
			t.Errorf("%+v, %v", s, err)
		}
		want("branched", tag)
	}
	if _, err := cl.Rollback(ctx, id, "b1"); err != nil {
		t.Fatal(err)
	}
	want("rolled back", "b1")
	d, err := cl.Snapshot(ctx, "b2")
	if err != nil || d.After != "b1" || d.Labels["turn"] != "b2" {
		t.Errorf("after %q, labels %v, %v", d.After, d.Labels, err)
	}
	if _, err := cl.Rollback(ctx, id, "b2"); err != nil {
		t.Errorf("forward again: %v", err)
	}
	if err := cl.DeleteSnapshot(ctx, "b1", client.DeleteOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	if d, err = cl.Snapshot(ctx, "b2"); err != nil || d.After != "" {
		t.Errorf("after %q, which was deleted, %v", d.After, err)
	}
	if status, answer := post(t, url+"/v1/sandboxes/"+id+"/branch", `{"labels":{"-":"x"}}`); status != 400 ||
		answer["field"] != "labels" {
		t.Errorf("a wrong label: %d %v", status, answer)
	}
}
