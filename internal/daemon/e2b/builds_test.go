package e2b_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
	plans "github.com/forkd/forkd/internal/daemon/build"
	"github.com/forkd/forkd/internal/daemon/template"
	"github.com/forkd/forkd/internal/format/snapshot"
)

// build is a template being built.
type build struct {
	ID       string `json:"buildID"`
	Template string `json:"templateID"`
	Status   string
	Logs     []string
	Entries  []struct{ Timestamp, Level, Message, Step string } `json:"logEntries"`
	Reason   struct{ Message, Step string }
}

func (r *rig) request(name string) (b build) {
	r.t.Helper()
	r.call("POST", "/v3/templates", fmt.Sprintf(`{"name":%q}`, name), 202, &b)
	return b
}

func (b build) path() string { return "/templates/" + b.Template + "/builds/" + b.ID }

// finished waits for the end of a build and returns it with its whole log.
func (r *rig) finished(b build) build {
	r.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		var now build
		if r.call("GET", b.path()+"/status", "", 200, &now); now.Status != "ready" && now.Status != "error" {
			continue
		}
		for len(now.Entries) > 0 {
			b.Entries = append(b.Entries, now.Entries...)
			now.Entries = nil
			r.call("GET", b.path()+"/status?logsOffset="+strconv.Itoa(len(b.Entries)), "", 200, &now)
		}
		now.Entries = b.Entries
		return now
	}
	r.t.Fatal("the build does not end")
	return b
}

// built runs a build to its end. The first step sets HOME to a missing directory, so that login
// shells read no profile: the guests of this rig use the file system and accounts of the host.
func (r *rig) built(b build, body string) build {
	r.t.Helper()
	body = strings.Replace(body, `"steps":[`, `"steps":[{"type":"ENV","args":["HOME","/nonexistent"]},`, 1)
	body = strings.Replace(body, "},]", "}]", 1)
	resp := r.call("POST", "/v2"+b.path(), body, 202, nil)
	if resp.ContentLength != 0 {
		r.t.Errorf("the answer has the length %d", resp.ContentLength)
	}
	return r.finished(b)
}

func (b build) log() (text string) {
	for _, e := range b.Entries {
		text += e.Message + "\n"
	}
	return text
}

// archive makes a compressed tar archive of names and contents. The content "link:TARGET" makes a
// symbolic link.
func archive(t *testing.T, files ...string) string {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	for n := 0; n < len(files); n += 2 {
		h := &tar.Header{Name: files[n], Mode: 0o640, Size: int64(len(files[n+1])), Typeflag: tar.TypeReg}
		target, isLink := strings.CutPrefix(files[n+1], "link:")
		if isLink {
			h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, target, 0
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if !isLink {
			if _, err := w.Write([]byte(files[n+1])); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.Close()
	z.Close()
	return out.String()
}

// link returns the address for uploading the files of a step.
func (r *rig) link(b build, hash string) (path string, present bool) {
	r.t.Helper()
	var got struct {
		Present bool
		URL     string
	}
	r.call("GET", "/templates/"+b.Template+"/files/"+hash, "", 201, &got)
	u, err := url.Parse(got.URL)
	if err != nil || !strings.HasPrefix(got.URL, r.URL+"/") {
		r.t.Fatalf("link %q: %v", got.URL, err)
	}
	return u.RequestURI(), got.Present
}

func (r *rig) upload(b build, hash, content string) {
	r.t.Helper()
	path, _ := r.link(b, hash)
	if resp, text := r.send("PUT", path, nil, content); resp.StatusCode != 200 {
		r.t.Fatalf("upload: %s %s", resp.Status, text)
	}
	if _, present := r.link(b, hash); !present {
		r.t.Error("what was sent is not there")
	}
}

// A template with every kind of step is built. Its steps write files only to a directory of the
// test.
func TestBuildOfATemplate(t *testing.T) {
	r := start(t)
	dir := t.TempDir()
	b := r.request("mine:default")
	if b.Template != "mine" {
		t.Fatalf("%+v", b)
	}
	var now build
	if r.call("GET", b.path()+"/status", "", 200, &now); now.Status != "waiting" || now.Logs == nil {
		t.Errorf("before its start: %+v", now)
	}
	hash, other := strings.Repeat("a", 64), strings.Repeat("b", 64)
	r.upload(b, hash, archive(t, "src/x.txt", "x", "src/sub/y.txt", "y", "src/l", "link:/etc/passwd"))
	r.upload(b, other, archive(t, "one.txt", "wrong"))
	r.upload(b, other, archive(t, "one.txt", "1")) // replaces the previous archive
	step := func(kind string, args ...string) string {
		quoted := make([]string, len(args))
		for n, a := range args {
			quoted[n] = strconv.Quote(a)
		}
		hash := hash
		if strings.HasPrefix(args[0], "one") {
			hash = other
		}
		return fmt.Sprintf(`{"type":%q,"args":[%s],"force":false,"filesHash":%q}`, kind, strings.Join(quoted, ","), hash)
	}
	steps := strings.Join([]string{
		step("WORKDIR", dir+"/new/deep"),
		step("ENV", "A", "1"),
		step("ENV", "A", "2", "B", "$A and ${C:-3} \"$(id)`"),
		step("ENV", "LONG", strings.Repeat("x", 10_000)+"$A"),
		step("RUN", `echo "$B"; echo in $PWD; echo err >&2; echo ${#LONG}`),
		step("COPY", "src/*", "copied", "", ""),
		step("COPY", "one.txt", "into/", "root", "0600"),
		step("COPY", "one*.txt", "all/", "0:0", ""),
		step("COPY", "src/", "copied/", "root:root", ""), // replaces existing files
		step("USER", "root"),
		step("RUN", "cat copied/x.txt into/one.txt all/one.txt; whoami", "root"),
	}, ",")
	end := r.built(b, `{"fromTemplate":"a.b","force":false,"steps":[`+steps+`],"startCmd":"echo up > started; sleep 30","readyCmd":"test -s started"}`)
	if end.Status != "ready" {
		t.Fatalf("%+v\n%s", end.Reason, end.log())
	}
	// The lines of stdout and stderr may be interleaved in any order.
	for _, want := range []string{"1 and 3 \"$(id)`\n", "in " + dir + "/new/deep\n", "err\n", "10001\n", "x11root\n",
		"[12/12] RUN cat"} {
		if !strings.Contains(end.log(), want) {
			t.Errorf("no %q in its log:\n%s", want, end.log())
		}
	}
	for name, want := range map[string]string{"copied/sub/y.txt": "y", "into/one.txt": "1", "started": "up\n"} {
		if p, err := os.ReadFile(filepath.Join(dir, "new/deep", name)); err != nil || string(p) != want {
			t.Errorf("%s: %q, %v", name, p, err)
		}
	}
	if to, err := os.Readlink(filepath.Join(dir, "new/deep/copied/l")); err != nil || to != "/etc/passwd" {
		t.Errorf("link to %q, %v", to, err)
	}
	r.checkClean("mine", "a.b")
	r.call("GET", "/templates/aliases/mine", "", 200, nil)
	r.call("POST", "/v2"+b.path(), `{"fromTemplate":"a.b"}`, 400, nil) // the build has been started already
	in := r.create(`{"templateID":"mine"}`)
	r.call("POST", "/v3/templates", `{"name":"mine"}`, 409, nil) // the name is in use
	r.call("POST", "/sandboxes/"+in.ID+"/snapshots", `{"name":"of-it"}`, 201, nil)
	var list []struct {
		ID string `json:"snapshotID"`
	}
	if r.call("GET", "/snapshots", "", 200, &list); len(list) != 1 || list[0].ID != "of-it" {
		t.Errorf("snapshots: %+v, want the one that is no template", list)
	}
}

// A build of an existing template replaces it if the build succeeds.
func TestBuildAgain(t *testing.T) {
	r := start(t)
	made := func() time.Time {
		t.Helper()
		d, err := r.Store.Detail("mine")
		if err != nil {
			t.Fatal(err)
		}
		return d.Created
	}
	if end := r.built(r.request("mine"), `{"fromTemplate":"a.b:default"}`); end.Status != "ready" {
		t.Fatalf("%+v", end)
	}
	first := made()
	end := r.built(r.request("mine"),
		`{"fromTemplate":"a.b","steps":[{"type":"RUN","args":["true"]},{"type":"RUN","args":["echo why; exit 7"]}]}`)
	if end.Status != "error" || end.Reason.Step != "3" || !strings.Contains(end.Reason.Message, "exit status 7") ||
		!strings.Contains(end.log(), "why\n") || !made().Equal(first) {
		t.Errorf("%+v\n%s", end, end.log())
	}
	end = r.built(r.request("mine"), `{"fromTemplate":"a.b","steps":[],"startCmd":"exit 3","readyCmd":"false"}`)
	if end.Status != "error" || end.Reason.Step != "finalize" || !strings.Contains(end.Reason.Message,
		"ended before it was warm: exit status 3") {
		t.Errorf("%+v\n%s", end, end.log())
	}
	if end := r.built(r.request("mine"), `{"fromTemplate":"a.b"}`); end.Status != "ready" || !made().Equal(first) {
		t.Errorf("nothing has changed: %+v, made at %v", end, made())
	}
	end = r.built(r.request("mine"), `{"fromTemplate":"a.b","force":true}`)
	if end.Status != "ready" || !made().After(first) {
		t.Errorf("by force: %+v, made at %v", end, made())
	}
	r.checkClean("mine", "a.b")
}

// A build from a container image makes a parent from the image, and deletes the parent at the end
// of the build. A build from E2B's own image uses the template base instead.
func TestBuildOfAnImage(t *testing.T) {
	r := start(t)
	b := build{}
	r.call("POST", "/v2/templates", `{"alias":"mine","cpuCount":2,"memoryMB":128}`, 202, &b)
	end := r.built(b, `{"fromImage":"`+apirig.Image+`","steps":[{"type":"run","args":["true"]}]}`)
	if end.Status != "ready" {
		t.Fatalf("%+v\n%s", end, end.log())
	}
	r.checkClean("mine", "a.b")
	if d, err := r.Store.Detail("mine"); err != nil || d.Machine.VCPUs != 2 || d.Machine.MemoryBytes != 128<<20 {
		t.Errorf("its machine: %+v, %v", d.Machine, err)
	}
	// There is no template "base".
	r.call("POST", "/v2"+r.request("other").path(), `{"fromImage":"e2bdev/base:latest"}`, 404, nil)
	b = build{}
	r.call("POST", "/v3/templates", `{"name":"other"}`, 202, &b)
	if end := r.built(b, `{"fromImage":"no.such/image"}`); end.Status != "error" || end.Reason.Step != "base" ||
		!strings.Contains(end.Reason.Message, "no such image") {
		t.Errorf("%+v", end)
	}
}

// A new build of the same template cancels the previous build, whether or not the previous build
// has started.
func TestBuildIsCalledOff(t *testing.T) {
	r := start(t)
	old := r.request("mine")
	r.upload(old, "h", "x")
	b := r.request("mine")
	if end := r.finished(old); end.Status != "error" || !strings.Contains(end.Reason.Message, "another build") {
		t.Errorf("one that was not started: %+v", end)
	}
	r.begin(b)
	next := r.request("mine")
	if end := r.built(next, `{"fromTemplate":"a.b"}`); end.Status != "ready" {
		t.Errorf("the next: %+v", end)
	}
	if end := r.finished(b); end.Status != "error" || !strings.Contains(end.Reason.Message, "another build") {
		t.Errorf("one that ran: %+v", end)
	}
	r.checkClean("mine", "a.b")
}

// A build can be cancelled even if a guest never answers the request to remove the files that a
// COPY step has unpacked.
func TestBuildIsCalledOffDuringARemoval(t *testing.T) {
	dir := t.TempDir()
	var once sync.Once
	removing := make(chan struct{})
	r := startWith(t, apirig.Options{Dial: func(ctx context.Context) error {
		if _, err := os.Stat(filepath.Join(dir, "f")); err != nil {
			return nil // the step has not placed its file yet
		}
		once.Do(func() { close(removing) })
		<-ctx.Done()
		return ctx.Err()
	}})
	b := r.request("mine")
	r.upload(b, "h", archive(t, "f", "x"))
	r.call("POST", "/v2"+b.path(), `{"fromTemplate":"a.b","steps":[{"type":"ENV","args":["HOME","/"]},`+
		`{"type":"COPY","args":["f","`+dir+`/"],"filesHash":"h"}]}`, 202, nil)
	<-removing
	r.call("POST", "/v2"+r.request("mine").path(), `{"fromTemplate":"a.b"}`, 202, nil)
	if end := r.finished(b); end.Status != "error" || !strings.Contains(end.Reason.Message, "another build") {
		t.Errorf("%+v", end)
	}
}

// begin starts a long-running build, and returns while it is running.
func (r *rig) begin(b build) {
	r.t.Helper()
	r.call("POST", "/v2"+b.path(),
		`{"fromTemplate":"a.b","steps":[{"type":"ENV","args":["HOME","/"]},{"type":"RUN","args":["sleep 60"]}]}`, 202, nil)
	for now := b; !strings.Contains(now.log(), "RUN sleep 60"); time.Sleep(10 * time.Millisecond) {
		r.call("GET", b.path()+"/status", "", 200, &now)
	}
}

// If a daemon stops during a build, the next daemon deletes the build's sandbox and archives. Only
// /v1 shows the build's sandbox.
func TestBuildOfAnEarlierDaemon(t *testing.T) {
	r := start(t)
	b := r.request("mine")
	r.upload(b, "h", "x")
	r.begin(b)
	var list []client.Sandbox
	for end := time.Now().Add(time.Minute); len(list) == 0; time.Sleep(10 * time.Millisecond) {
		var err error
		if list, err = r.Sandboxes(t.Context()); err != nil || time.Now().After(end) {
			t.Fatalf("sandboxes: %+v, %v", list, err)
		}
	}
	var seen []box
	if r.call("GET", "/v2/sandboxes", "", 200, &seen); len(seen) != 0 {
		t.Errorf("listed: %+v", seen)
	}
	r.call("GET", "/sandboxes/"+list[0].ID, "", 404, nil)
	r.call("POST", "/sandboxes/"+list[0].ID+"/fork", "{}", 404, nil)
	parts := []string{"results", "announced", "used"}
	for i := range parts {
		parts[i] = filepath.Join(r.Plans.Dir, parts[i], ".mine.new-1")
	}
	for _, part := range parts { // records that the earlier daemon did not finish writing
		if err := os.WriteFile(part, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := plans.New(r.Plans); err != nil {
		t.Fatal(err)
	}
	for _, part := range parts {
		if _, err := os.Stat(part); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", part, err)
		}
	}
	next, err := template.New(r.Builds)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	if end := r.finished(b); end.Status != "error" {
		t.Errorf("it has gone on: %+v", end)
	}
	r.checkClean("a.b")
}

// The time limit of a build includes the time for unpacking its archives.
func TestUnpackingIsWithinTheTimeOfABuild(t *testing.T) {
	r := start(t)
	cfg, own := r.Plans, r.Builds
	cfg.Dir, cfg.Longest, own.Dir = t.TempDir(), time.Nanosecond, t.TempDir()
	var err error
	if own.Builds, err = plans.New(cfg); err != nil {
		t.Fatal(err)
	}
	b, err := template.New(own)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	bd, err := b.Request("token:a", template.Ask{Template: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Upload(bd, "h", 10, strings.NewReader("no archive")); err != nil {
		t.Fatal(err)
	}
	steps := []template.Step{{Type: "COPY", Args: []string{"a", "/"}, FilesHash: "h"}}
	if err := b.Start(t.Context(), bd, template.Plan{FromTemplate: "a.b", Steps: steps}); err != nil {
		t.Fatal(err)
	}
	for {
		status, why := b.State(bd)
		if status == template.Failed {
			if !strings.Contains(why.Message, "not done after 1ns") {
				t.Errorf("%+v", why)
			}
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// A link permits the upload of one archive of one waiting build. No entry of an archive can leave
// its directory in the guest.
func TestUploads(t *testing.T) {
	r := start(t)
	b := r.request("x")
	path, _ := r.link(b, "h")
	for _, wrong := range []string{strings.Replace(path, "files/h", "files/i", 1), path[:len(path)-1],
		strings.Replace(path, b.ID, strings.Repeat("0", len(b.ID)), 1), "/templates/x/files/h?signature="} {
		if resp, text := r.send("PUT", wrong, nil, "x"); resp.StatusCode != 401 {
			t.Errorf("%s: %s %s", wrong, resp.Status, text)
		}
	}
	// This request has no Content-Length.
	req, err := http.NewRequestWithContext(t.Context(), "PUT", r.URL+path, io.MultiReader(strings.NewReader("x")))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil || resp.StatusCode != 400 {
		t.Errorf("without a length: %+v, %v", resp, err)
	}
	resp.Body.Close()
	bad, _ := r.link(b, "..%2Fh")
	if resp, text := r.send("PUT", bad, nil, "x"); resp.StatusCode/100 != 4 {
		t.Errorf("a hash that is a path: %s %s", resp.Status, text)
	}
	outside := filepath.Join(t.TempDir(), "out")
	r.upload(b, "h", archive(t, "../../../../../.."+outside, "x", "l", "link:"+filepath.Dir(outside), "l/out", "x"))
	end := r.built(b, `{"fromTemplate":"a.b","steps":[{"type":"COPY","args":["*","`+t.TempDir()+`"],"filesHash":"h"}]}`)
	if _, err := os.Stat(outside); err == nil || end.Status != "error" {
		t.Errorf("an archive that leads out: %+v, %v", end, err)
	}
	if resp, text := r.send("PUT", path, nil, "x"); resp.StatusCode != 404 {
		t.Errorf("after the build: %s %s", resp.Status, text)
	}
	r.checkClean("a.b")
}

// The holder of a signed link counts as the client that the link was made for, so new connections do
// not take the place of the upload's connection.
func TestUploadsAreIdentified(t *testing.T) {
	r := start(t)
	path, _ := r.link(r.request("x"), "h")
	var names []string
	for _, at := range []string{path[:len(path)-1], path} { // a wrong signature identifies no client
		req := httptest.NewRequest(http.MethodPut, at, strings.NewReader("x"))
		req.Host = strings.TrimPrefix(r.URL, "http://")
		ctx := auth.OnIdentified(req.Context(), func(who string, _ bool) { names = append(names, who) })
		r.Handler.ServeHTTP(httptest.NewRecorder(), req.WithContext(ctx))
	}
	if len(names) != 1 || names[0] == "" {
		t.Errorf("identified: %q", names)
	}
}

// checkClean fails if there are sandboxes, archives, or snapshots other than the snapshots with the
// given tags.
func (r *rig) checkClean(tags ...string) {
	r.t.Helper()
	list, err := r.Sandboxes(r.t.Context())
	if err != nil || len(list) != 0 {
		r.t.Errorf("sandboxes: %+v, %v", list, err)
	}
	left, err := filepath.Glob(filepath.Join(r.Builds.Dir, "*"))
	if err != nil || len(left) != 0 {
		r.t.Errorf("archives: %q, %v", left, err)
	}
	r.Store.Quiesce()
	have := map[string]bool{}
	for _, i := range r.Store.List() {
		if !snapshot.IsStepTag(i.Tag) {
			have[i.Tag] = true
		}
	}
	for _, tag := range tags {
		if !have[tag] {
			r.t.Errorf("no snapshot %s", tag)
		}
		delete(have, tag)
	}
	if len(have) > 0 {
		r.t.Errorf("snapshots: %v", have)
	}
}
