package e2b_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/format/snapshot"
)

// If another client has made a template of the same name during a build, the build replaces that
// template only if the client of the build may delete the template. Clients with a label prefix
// cannot build from container images. A client cannot make the daemon forget other clients' builds.
func TestBuildsBesideOthers(t *testing.T) {
	r := startWith(t, apirig.Options{Tokens: []auth.Token{{Name: "runner", Scope: auth.Run},
		{Name: "team", Scope: auth.Run, Prefix: "team-a/"}}})
	as := func(token string) {
		r.key = header{"Authorization": "Bearer " + token, "Content-Type": "application/json"}
	}
	dir := t.TempDir()
	begin := func(b build, from string) { // the build runs until finish is called
		t.Helper()
		r.call("POST", "/v2"+b.path(), fmt.Sprintf(`{%s,"steps":[{"type":"ENV","args":["HOME","/"]},
			{"type":"RUN","args":["while [ ! -e %s ]; do sleep 0.05; done"]}]}`, from, filepath.Join(dir, b.Template)), 202, nil)
		for now := b; !strings.Contains(now.log(), "RUN"); time.Sleep(10 * time.Millisecond) {
			if r.call("GET", b.path()+"/status", "", 200, &now); now.Status == "error" {
				t.Fatalf("%+v", now)
			}
		}
	}
	finish := func(b build) build {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, b.Template), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return r.finished(b)
	}

	as(r.Tokens["runner"])
	late := r.request("late")
	begin(late, `"fromTemplate":"a.b"`)
	as(apirig.Token)
	s := r.create(`{"templateID":"a.b"}`)
	if resp, text := r.send("POST", "/v1/sandboxes/"+s.ID+"/branch", r.key, `{"tag":"late"}`); resp.StatusCode/100 != 2 {
		t.Fatalf("branch: %s %s", resp.Status, text)
	}
	made, err := r.Store.Detail("late")
	if err != nil {
		t.Fatal(err)
	}
	as(r.Tokens["runner"])
	if end := finish(late); end.Status != "error" || !strings.Contains(end.Reason.Message, "late") {
		t.Errorf("it has ended: %+v", end)
	}
	if now, err := r.Store.Detail("late"); err != nil || now.ID != made.ID {
		t.Errorf("what somebody else had made was replaced: %v, %v", now.ID, err)
	}

	as(apirig.Token)
	private := r.request("private")
	begin(private, `"fromImage":"`+apirig.Image+`"`)
	step := ""
	for _, i := range r.Store.List() {
		if i.Branch == nil && snapshot.IsStepTag(i.Tag) {
			step = i.Tag
		}
	}
	if step == "" {
		t.Fatal("no snapshot of the image")
	}
	as(r.Tokens["team"])
	if resp, text := r.send("GET", "/v1/snapshots", r.key, ""); resp.StatusCode != 200 ||
		strings.Contains(text, step) {
		t.Errorf("listed for a team: %s %s", resp.Status, text)
	}
	if resp, text := r.send("POST", "/v1/sandboxes", r.key,
		`{"snapshot_tag":"`+step+`"}`); resp.StatusCode != 404 {
		t.Errorf("forked by a team: %s %s", resp.Status, text)
	}
	for range 40 { // each request replaces the previous build
		r.request("team-a.x")
	}
	as(apirig.Token)
	if end := finish(private); end.Status != "ready" {
		t.Errorf("%+v", end)
	}
	as(r.Tokens["runner"])
	r.call("GET", late.path()+"/status", "", 200, nil)
}

// The template builds of one client can take most of the places, but not all. Further builds of the
// client wait, and can be replaced. One place is reserved for builds of Dockerfiles.
func TestBuildsOfTemplatesWaitForPlaces(t *testing.T) {
	r := startWith(t, apirig.Options{Tokens: []auth.Token{{Name: "runner", Scope: auth.Run},
		{Name: "other", Scope: auth.Run}}})
	as := func(token string) {
		r.key = header{"X-API-Key": r.Tokens[token], "Content-Type": "application/json"}
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	begin := func(name string) build {
		t.Helper()
		b := r.request(name)
		r.call("POST", "/v2"+b.path(), fmt.Sprintf(`{"fromTemplate":"a.b","steps":[{"type":"ENV","args":["HOME","/"]},
			{"type":"RUN","args":["touch %[1]s/begun-%[2]s; while [ ! -e %[1]s/go ]; do sleep 0.05; done"]}]}`, dir, name), 202, nil)
		return b
	}
	begun := func() int {
		names, err := filepath.Glob(dir + "/begun-*")
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	as("runner")
	own := []build{begin("t0"), begin("t1")}
	for deadline := time.Now().Add(time.Minute); begun() < 2 && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	waits := begin("waits")
	as("other")
	others := begin("t2")
	for deadline := time.Now().Add(time.Minute); begun() < 3 && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	as("runner")
	var now build
	_, err := os.Stat(dir + "/begun-t2")
	if r.call("GET", waits.path()+"/status", "", 200, &now); begun() != 3 || now.Status != "building" || err != nil {
		t.Errorf("%d builds run, the third of a client is %s, that of another client: %v", begun(), now.Status, err)
	}
	_, err = r.Client.Build(t.Context(), client.BuildRequest{Tag: "made", Dockerfile: "FROM a.b\n"}, nil,
		func(client.BuildEvent) error { return nil })
	if err != nil {
		t.Errorf("a Dockerfile meanwhile: %v", err)
	}
	own = append(own, begin("waits")) // replaces the client's waiting build
	if end := r.finished(waits); end.Status != "error" || !strings.Contains(end.Reason.Message, "another build") {
		t.Errorf("the build that was replaced: %+v", end)
	}
	if err := os.WriteFile(dir+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, b := range own {
		if end := r.finished(b); end.Status != "ready" {
			t.Errorf("%s: %s %+v", b.Template, end.Status, end.Reason)
		}
	}
	as("other")
	if end := r.finished(others); end.Status != "ready" {
		t.Errorf("of another client: %s %+v", end.Status, end.Reason)
	}
}

// The guest determines the values of variables, and a client may use a variable many times in a
// request. The expanded text is bounded.
func TestVariablesAreBounded(t *testing.T) {
	r := start(t)
	var many []string
	for i := range 8 {
		many = append(many, fmt.Sprintf(`"B%d","$LONG"`, i))
	}
	end := r.built(r.request("mine"), `{"fromTemplate":"a.b","steps":[
		{"type":"ENV","args":["LONG","`+strings.Repeat("x", 30_000)+`"]},
		{"type":"ENV","args":[`+strings.Join(many, ",")+`]}]}`)
	if end.Status != "error" || end.Reason.Step != "3" ||
		!strings.Contains(end.Reason.Message, "the variables take more than") {
		t.Errorf("%s %.300v", end.Status, end.Reason)
	}
	end = r.built(r.request("mine"), `{"fromTemplate":"a.b","steps":[
		{"type":"ENV","args":["LONG","`+strings.Repeat("x", 100_000)+`"]}]}`)
	if end.Status != "error" || end.Reason.Step != "2" || !strings.Contains(end.Reason.Message, "want at most 32768") {
		t.Errorf("%s %.300v", end.Status, end.Reason)
	}
}

// A build fails immediately if its sandbox is paused because the host's disk is full. The build
// leaves no files.
func TestBuildOnAFullDisk(t *testing.T) {
	r := start(t)
	b := r.request("mine")
	r.upload(b, "h", "x")
	r.begin(b)
	for _, v := range r.VMs.All() {
		v.Stall()
	}
	end := r.finished(b)
	if end.Status != "error" || end.Reason.Step != "2" || !strings.Contains(end.Reason.Message,
		"the host's disk is full") {
		t.Errorf("%s %+v", end.Status, end.Reason)
	}
	r.checkClean("a.b")
}

// If the token with which a client requested an upload link is removed, the link becomes invalid.
func TestLinkOfATokenThatIsGone(t *testing.T) {
	r := startWith(t, apirig.Options{Tokens: []auth.Token{{Name: "runner", Scope: auth.Run}}})
	r.key = header{"X-API-Key": r.Tokens["runner"]}
	b := r.request("x")
	r.upload(b, "h", "x")
	path, _ := r.link(b, "i")
	file, err := os.ReadFile(r.TokenFile)
	if err != nil {
		t.Fatal(err)
	}
	kept := regexp.MustCompile(`(?m)^runner .*\n`).ReplaceAll(file, nil)
	if len(kept) == len(file) || os.WriteFile(r.TokenFile, kept, 0o600) != nil {
		t.Fatalf("the token file:\n%s", file)
	}
	if resp, text := r.send("PUT", path, nil, "x"); resp.StatusCode != 401 || !strings.Contains(text, "token") {
		t.Errorf("%s %s", resp.Status, text)
	}
}

// The log of a build can be read backward, read from a given time, and filtered by level.
func TestBuildLogs(t *testing.T) {
	r := start(t)
	b := r.request("mine")
	end := r.built(b, `{"fromTemplate":"a.b","steps":[{"type":"RUN","args":["echo one"]},{"type":"RUN","args":["exit 3"]}]}`)
	logs := func(query string) (text []string) {
		t.Helper()
		var got struct {
			Logs []struct{ Timestamp, Level, Message, Step string }
		}
		r.call("GET", b.path()+"/logs?"+query, "", 200, &got)
		for _, e := range got.Logs {
			text = append(text, e.Message)
		}
		return text
	}
	all := logs("")
	if strings.Join(all, "\n")+"\n" != end.log() || len(all) < 4 {
		t.Errorf("all: %q", all)
	}
	last := all[len(all)-1]
	for query, want := range map[string][]string{
		"limit=1": all[:1], "direction=backward&limit=1": {last}, "level=error": {last}, "cursor=0": all,
		"cursor=99999999999999":       nil,
		"direction=backward&cursor=1": nil,
	} {
		if got := logs(query); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	for _, query := range []string{"limit=x", "cursor=x", "level=x", "direction=x"} {
		r.call("GET", b.path()+"/logs?"+query, "", 400, nil)
	}
	r.call("GET", "/templates/mine/builds/none/logs", "", 404, nil)
}

// E2B's CLI, and its SDKs before September 2026, request two CPUs and 1024 MiB by default.
func TestBuildOfTheUsualMachine(t *testing.T) {
	r := start(t)
	have, err := r.Store.Detail("a.b")
	if err != nil {
		t.Fatal(err)
	}
	for size, want := range map[string]snapshot.Machine{
		`"cpuCount":2,"memoryMB":1024`: have.Machine, `"cpuCount":4,"memoryMB":1024`: {VCPUs: 4, MemoryBytes: 1 << 30},
		`"memoryMB":128`: {VCPUs: have.Machine.VCPUs, MemoryBytes: 128 << 20},
	} {
		var b build
		r.call("POST", "/v3/templates", `{"name":"mine",`+size+`}`, 202, &b)
		end := r.built(b, `{"fromTemplate":"a.b","steps":[{"type":"RUN","args":["true"]}]}`)
		made, err := r.Store.Detail("mine")
		if err != nil || made.Machine.VCPUs != want.VCPUs || made.Machine.MemoryBytes != want.MemoryBytes {
			t.Errorf("%s: %s %+v; %+v, %v", size, end.Status, end.Reason, made.Machine, err)
		}
	}
	r.checkClean("a.b", "mine")
}

// E2B's CLI requires each line of a log to be an object, and repeats its request with the time of
// the last line.
func TestLogs(t *testing.T) {
	r := start(t)
	s := r.create(`{"templateID":"a.b"}`)
	var got struct {
		Logs []struct {
			Timestamp time.Time
			Line      string
		}
	}
	r.call("GET", "/sandboxes/"+s.ID+"/logs", "", 200, &got)
	var line struct{ Level, Logger, Message string }
	if len(got.Logs) != 3 || json.Unmarshal([]byte(got.Logs[0].Line), &line) != nil || line.Level != "info" ||
		line.Logger == "" || line.Message != "hello" {
		t.Fatalf("%+v", got)
	}
	after := fmt.Sprintf("?start=%d", got.Logs[0].Timestamp.UnixMilli()+1)
	if r.call("GET", "/sandboxes/"+s.ID+"/logs"+after, "", 200, &got); len(got.Logs) != 0 {
		t.Errorf("after the last: %+v", got)
	}
	r.call("GET", "/v2/sandboxes/"+s.ID+"/logs?direction=backward&limit=1", "", 200, &got)
	r.call("GET", "/sandboxes/"+s.ID+"/logs?start=x", "", 400, nil)
	r.call("GET", "/default-templates", "", 501, nil)
	r.call("PATCH", "/v2/templates/a.b", `{"public":true}`, 501, nil)
}

func TestWrongBuilds(t *testing.T) {
	r := start(t)
	for _, body := range []string{`{"name":"a/b"}`, `{}`, `{"name":"x:"}`, `{"name":":v1"}`, `{"name":"x","tags":["a b"]}`,
		`{"name":"x","cpuCount":-1}`,
		`{"name":"x","memoryMB":99999999}`} {
		r.call("POST", "/v3/templates", body, 400, nil)
	}
	b := r.request("x")
	r.upload(b, "h", "no archive")
	for _, body := range []string{`{}`, `{"fromTemplate":"a.b","fromImage":"x"}`,
		`{"fromImage":"x","fromImageRegistry":{"type":"aws"}}`,
		`{"fromTemplate":"a.b","steps":[{"type":"VOLUME","args":["x"]}]}`,
		`{"fromTemplate":"a.b","steps":[{"type":"COPY","args":["x","y"],"filesHash":"unsent"}]}`,
		`{"fromTemplate":"a.b","steps":[{"type":"COPY","args":["x","y","a b"],"filesHash":"h"}]}`,
		`{"fromTemplate":"a.b","steps":[{"type":"COPY","args":["x","y","","u+x"],"filesHash":"h"}]}`,
		`{"fromTemplate":"a.b","steps":[{"type":"ENV","args":["A=","x"]}]}`,
		`{"fromTemplate":"a.b","steps":[{"type":"RUN","args":["x\u0000y"]}]}`} {
		r.call("POST", "/v2"+b.path(), body, 400, nil)
	}
	r.call("POST", "/v2"+b.path(), `{"fromTemplate":"none"}`, 404, nil)
	r.call("POST", "/v2/templates/x/builds/none", `{"fromTemplate":"a.b"}`, 404, nil)
	r.call("GET", "/templates/x/builds/none/status", "", 404, nil)
	r.call("GET", b.path()+"/status?logsOffset=-1", "", 400, nil)
	r.call("GET", "/templates/none/files/h", "", 404, nil)
	end := r.built(b, `{"fromTemplate":"a.b","steps":[{"type":"COPY","args":["x","y"],"filesHash":"h"}]}`)
	if end.Status != "error" || end.Reason.Step != "2" {
		t.Errorf("what is no archive: %+v", end)
	}
	r.checkClean("a.b")
}

// With the scope run, a client can make a new template from another template. Deleting a template,
// and fetching an image on the host, require the scope admin. Clients do not see other clients'
// builds.
func TestScopesOfBuilds(t *testing.T) {
	r := startWith(t, apirig.Options{Tokens: []auth.Token{{Name: "runner", Scope: auth.Run},
		{Name: "team", Scope: auth.Run, Prefix: "team-a/"},
		{Name: "reader", Scope: auth.Read}}})
	as := func(name string) { r.key = header{"X-API-Key": r.Tokens[name]} }
	as("reader")
	r.call("POST", "/v3/templates", `{"name":"x"}`, 403, nil)
	as("team")
	r.call("POST", "/v3/templates", `{"name":"x"}`, 403, nil)
	if end := r.built(r.request("team-a.x"), `{"fromTemplate":"a.b"}`); end.Status != "ready" {
		t.Errorf("of a team: %+v", end)
	}
	as("runner")
	r.call("POST", "/v3/templates", `{"name":"a.b"}`, 403, nil)
	b := r.request("x")
	r.call("POST", "/v2"+b.path(), `{"fromImage":"python:3"}`, 403, nil)
	as("team")
	r.call("GET", b.path()+"/status", "", 404, nil)
	r.call("POST", "/v2"+b.path(), `{"fromTemplate":"a.b"}`, 404, nil)
	as("runner")
	if end := r.built(b, `{"fromTemplate":"a.b"}`); end.Status != "ready" {
		t.Errorf("%+v", end)
	}
}

// A client with a label prefix cannot discover other clients' tags by changing the case of a name.
func TestCaseOfNamesHidesTheTagsOfOthers(t *testing.T) {
	r := startWith(t, apirig.Options{Tokens: []auth.Token{{Name: "team", Scope: auth.Run, Prefix: "team-a/"}}})
	team := header{"X-API-Key": r.Tokens["team"]}
	for range 2 { // before other clients have the tag, and afterwards
		resp, out := r.send("POST", "/v2/sandboxes", team, `{"templateID":"A.B"}`)
		if resp.StatusCode != 201 || !strings.Contains(out, `"templateID":"a.b"`) {
			t.Errorf("%s %s", resp.Status, out)
		}
		b := r.create(`{"templateID":"a.b"}`)
		r.send("POST", "/sandboxes/"+b.ID+"/snapshots", r.key, `{"name":"A.B"}`)
	}
}
