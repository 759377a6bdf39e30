package e2b_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/format/snapshot"
)

// runs() reads the words that steps have written to a file.
func runs(t *testing.T, dir string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "runs"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(string(text)), " ")
}

// A step that several templates share is run once. If a step has changed or is forced, this step
// and all later steps are run again.
func TestStepsOfTemplatesAreKept(t *testing.T) {
	r := start(t)
	dir := t.TempDir()
	run := func(name, more string) string {
		return fmt.Sprintf(`{"type":"RUN","args":["echo %[1]s >> %[2]s/runs"]%[3]s}`, name, dir, more)
	}
	copied := `{"type":"COPY","args":["f","` + dir + `/to/"],"filesHash":"h"}`
	build := func(name, content string, steps ...string) build {
		t.Helper()
		b := r.request(name)
		r.upload(b, "h", archive(t, "f", content))
		end := r.built(b, `{"fromTemplate":"a.b","steps":[`+strings.Join(steps, ",")+`]}`)
		if end.Status != "ready" {
			t.Fatalf("%+v\n%s", end.Reason, end.log())
		}
		return end
	}
	build("mine", "x", run("one", ""), copied, run("two", ""))
	end := build("other", "x", run("one", ""), copied, run("three", ""))
	if got := runs(t, dir); got != "one two three" || !strings.Contains(end.log(), "CACHED [2/4] RUN echo one") ||
		!strings.Contains(end.log(), "CACHED [3/4] COPY f") {
		t.Errorf("with another last step: %s\n%s", got, end.log())
	}
	build("mine", "y", run("one", ""), copied, run("two", ""))
	if got := runs(t, dir); got != "one two three two" {
		t.Errorf("with another file: %s", got)
	}
	build("mine", "y", run("one", ""), copied, run("two", ""))
	if got := runs(t, dir); got != "one two three two" {
		t.Errorf("the same again: %s", got)
	}
	build("mine", "y", run("one", `,"force":true`), copied, run("two", ""))
	if got := runs(t, dir); got != "one two three two one two" {
		t.Errorf("with skip_cache: %s", got)
	}
	r.checkClean("a.b", "mine", "other")
	var list []struct {
		ID string `json:"templateID"`
	}
	if r.call("GET", "/templates", "", 200, &list); len(list) != 3 {
		t.Errorf("templates: %+v", list)
	}
}

// The cached steps of a client with a label prefix are not used by other clients.
func TestStepsOfATeam(t *testing.T) {
	r := startWith(t, apirig.Options{Tokens: []auth.Token{{Name: "team", Scope: auth.Run, Prefix: "team-a/"}}})
	dir := t.TempDir()
	body := `{"fromTemplate":"a.b","steps":[{"type":"RUN","args":["echo x >> ` + dir + `/runs"]}]}`
	for n, c := range []struct{ token, name string }{{r.Tokens["team"], "team-a.x"}, {apirig.Token, "x"},
		{r.Tokens["team"], "team-a.y"}, {apirig.Token, "y"}} {
		r.key = header{"Authorization": "Bearer " + c.token, "Content-Type": "application/json"}
		if end := r.built(r.request(c.name), body); end.Status != "ready" {
			t.Errorf("build %d: %+v", n, end)
		}
	}
	if got := runs(t, dir); got != "x x" {
		t.Errorf("the step was carried out: %s", got)
	}
	teams := 0
	for _, i := range r.Store.List() {
		if snapshot.IsStepTag(i.Tag) && strings.HasPrefix(i.Tag, "team-a.") {
			teams++
		}
	}
	if teams != 1 {
		t.Errorf("the team has %d steps", teams)
	}
}

// Building on a private image requires its password even if a snapshot of the image exists.
func TestBuildOfAPrivateImage(t *testing.T) {
	r := start(t)
	for n, c := range []struct{ password, want string }{{"secret", "ready"}, {"other", "error"}} {
		end := r.built(r.request(fmt.Sprint("made", n)), `{"fromImage":"`+apirig.PrivateImage+
			`","fromImageRegistry":{"type":"registry","username":"me","password":"`+c.password+`"}}`)
		if end.Status != c.want {
			t.Errorf("with the password %s: %+v", c.password, end)
		}
	}
}

// Names have up to 128 characters, like E2B's.
func TestLongNames(t *testing.T) {
	r := start(t)
	name := strings.Repeat("task_", 22) + "__0123456789abcdef"
	if end := r.built(r.request(name), `{"fromTemplate":"a.b"}`); end.Status != "ready" {
		t.Errorf("%+v", end)
	}
	if s := r.create(`{"templateID":"` + name + `"}`); s.ID == "" {
		t.Error("no sandbox")
	}
	r.call("POST", "/v3/templates", `{"name":"`+strings.Repeat("x", 129)+`"}`, 400, nil)
}

// A file with two names is stored once in an archive. Entries below a link are refused.
func TestLinksInArchives(t *testing.T) {
	r := start(t)
	sent := func(headers ...tar.Header) build {
		t.Helper()
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		for _, h := range headers {
			if h.Typeflag == tar.TypeReg {
				h.Size = 1
			}
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write([]byte("x")[:h.Size]); err != nil {
				t.Fatal(err)
			}
		}
		w.Close()
		b := r.request("mine")
		r.upload(b, "h", out.String())
		return b
	}
	dir := t.TempDir()
	body := `{"fromTemplate":"a.b","steps":[{"type":"COPY","args":["d","` + dir + `/"],"filesHash":"h"}]}`
	b := sent(tar.Header{Name: "d/a", Typeflag: tar.TypeReg, Mode: 0o640},
		tar.Header{Name: "d/b", Typeflag: tar.TypeLink, Linkname: "d/a"})
	if end := r.built(b, body); end.Status != "ready" {
		t.Errorf("%+v", end)
	}
	for _, name := range []string{"a", "b"} {
		if p, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(p) != "x" {
			t.Errorf("%s: %q, %v", name, p, err)
		}
	}
	for _, bad := range [][]tar.Header{
		{{Name: "d/a", Typeflag: tar.TypeLink, Linkname: "d/none"}},
		{{Name: "d", Typeflag: tar.TypeSymlink, Linkname: "/etc"}, {Name: "d/a", Typeflag: tar.TypeReg}},
		{{Name: "d/a", Typeflag: tar.TypeFifo}},
	} {
		if end := r.built(sent(bad...), body); end.Status != "error" || end.Reason.Step != "2" {
			t.Errorf("%+v: %+v", bad, end)
		}
	}
}
