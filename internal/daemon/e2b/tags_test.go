package e2b_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/e2b"
)

// runs() returns the tag of the snapshot from which a new sandbox of a template runs.
func (r *rig) runs(template string) string {
	r.t.Helper()
	s := r.create(fmt.Sprintf(`{"templateID":%q}`, template))
	i, err := r.Sandbox(r.t.Context(), s.ID)
	if err != nil {
		r.t.Fatal(err)
	}
	return i.SnapshotTag
}

func (r *rig) tags(name string) string {
	r.t.Helper()
	var list []struct{ Tag string }
	r.call("GET", "/templates/"+name+"/tags", "", 200, &list)
	var tags []string
	for _, t := range list {
		tags = append(tags, t.Tag)
	}
	return strings.Join(tags, " ")
}

// A build has the tags of its request. Tags can be moved to another build, and can be removed. A
// deleted snapshot has no tags any more.
func TestTags(t *testing.T) {
	r := start(t)
	run := func(body string) {
		t.Helper()
		var b build
		r.call("POST", "/v3/templates", body, 202, &b)
		if end := r.built(b, `{"fromTemplate":"a.b"}`); end.Status != "ready" {
			t.Fatalf("%s: %+v", body, end)
		}
	}
	run(`{"name":"app:v1"}`)
	r.call("GET", "/templates/app", "", 404, nil)
	run(`{"name":"app:v2","tags":["stable","v2"]}`)
	run(`{"name":"app","tags":["default","latest"]}`)
	for template, want := range map[string]string{"app:v1": "app.v1", "app:v2": "app.v2", "app:stable": "app.v2",
		"app": "app", "app:default": "app", "app:latest": "app", "app.v2": "app.v2"} {
		if got := r.runs(template); got != want {
			t.Errorf("%s runs %s, want %s", template, got, want)
		}
	}
	var assigned struct {
		BuildID string
		Tags    []string
	}
	r.call("POST", "/templates/tags", `{"target":"app:v1","tags":["stable","default","app:stable"]}`, 201, &assigned)
	if len(assigned.Tags) != 2 || assigned.BuildID == "" {
		t.Errorf("%+v", assigned)
	}
	if a, b := r.runs("app:stable"), r.runs("app"); a != "app.v1" || b != "app.v1" {
		t.Errorf("moved tags run %s and %s", a, b)
	}
	if got := r.tags("app"); got != "latest stable default v1 v2" {
		t.Errorf("tags: %s", got)
	}
	r.call("DELETE", "/templates/tags", `{"name":"app","tags":["default","latest"]}`, 204, nil)
	if got := r.runs("app"); got != "app" {
		t.Errorf("without the assigned tag, app runs %s", got)
	}
	r.call("DELETE", "/templates/tags", `{"name":"app","tags":["v1"]}`, 409, nil)
	for body, status := range map[string]int{
		`{"target":"app:v1","tags":[":x"]}`:   400,
		`{"target":"app:v1","tags":["app:"]}`: 400,
		`{"target":"app:v1","tags":[]}`:       400,
		`{"target":"app:none","tags":["x"]}`:  404,
		`{"target":"app:","tags":["x"]}`:      404,
	} {
		r.call("POST", "/templates/tags", body, status, nil)
	}
	r.call("DELETE", "/templates/tags", `{"name":"app","tags":["none"]}`, 404, nil)

	boxes, err := r.Sandboxes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range boxes {
		r.call("DELETE", "/sandboxes/"+b.ID, "", 204, nil)
	}
	r.call("DELETE", "/templates/app.v1", "", 204, nil)
	run(`{"name":"app:v1"}`)
	if resp, out := r.send("POST", "/sandboxes", r.key, `{"templateID":"app:stable"}`); resp.StatusCode != 404 {
		t.Errorf("a tag of a deleted snapshot: %s %s", resp.Status, out)
	}
	list, err := filepath.Glob(filepath.Join(filepath.Dir(r.AuditLog), "template-tags"))
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	if _, err := e2b.OpenTags(list[0]); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(list[0], []byte(`{"version":1,"tags":[{"name":"a:b"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := e2b.OpenTags(list[0]); err == nil || !strings.Contains(err.Error(), "tags[0].snapshot") {
		t.Errorf("a damaged file: %v", err)
	}
}

// Only the client that assigned a tag, or an administrator, can move it. No client can assign a tag
// that names a build of another client, or a tag outside of the client's own prefix.
func TestTagsOfOthers(t *testing.T) {
	r := startWith(t, apirig.Options{Tokens: []auth.Token{{Name: "one", Scope: auth.Run}, {Name: "two", Scope: auth.Run},
		{Name: "reader", Scope: auth.Read}, {Name: "team", Scope: auth.Run, Prefix: "team-a/"}}})
	as := func(name string) { r.key = header{"X-API-Key": r.Tokens[name]} }
	admin := r.key
	r.call("POST", "/templates/tags", `{"target":"a.b","tags":["stable"]}`, 201, nil)
	as("two")
	r.call("POST", "/templates/tags", `{"target":"a.b","tags":["mine"]}`, 201, nil)
	as("one")
	for _, tag := range []string{"stable", "mine", "default"} {
		r.call("POST", "/templates/tags", fmt.Sprintf(`{"target":"a.b","tags":[%q]}`, tag), 403, nil)
	}
	for _, tag := range []string{"stable", "mine"} {
		r.call("DELETE", "/templates/tags", fmt.Sprintf(`{"name":"a.b","tags":[%q]}`, tag), 403, nil)
		r.call("POST", "/v3/templates", fmt.Sprintf(`{"name":"a.b:%s"}`, tag), 403, nil)
	}
	as("team")
	r.call("POST", "/templates/tags", `{"target":"a.b","tags":["x"]}`, 403, nil)
	as("reader")
	r.call("POST", "/templates/tags", `{"target":"a.b","tags":["x"]}`, 403, nil)
	as("two")
	r.call("DELETE", "/templates/tags", `{"name":"a.b","tags":["mine"]}`, 204, nil)
	r.key = admin
	r.call("DELETE", "/templates/tags", `{"name":"a.b","tags":["stable"]}`, 204, nil)
	if got := r.tags("a.b"); got != "default" {
		t.Errorf("tags: %s", got)
	}
}

// E2B's SDKs fold names to lower case. No client can assign the folded name of another client's
// template.
func TestTagsThatDifferInCase(t *testing.T) {
	r := startWith(t, apirig.Options{Tokens: []auth.Token{{Name: "one", Scope: auth.Run}}})
	admin := r.key
	r.call("POST", "/sandboxes/"+r.create(`{"templateID":"a.b"}`).ID+"/snapshots", `{"name":"MyApp"}`, 201, nil)
	r.key = header{"X-API-Key": r.Tokens["one"]}
	r.call("POST", "/sandboxes/"+r.create(`{"templateID":"a.b"}`).ID+"/snapshots", `{"name":"myapp:x"}`, 201, nil)
	r.call("POST", "/templates/tags", `{"target":"myapp:x","tags":["default"]}`, 403, nil)
	if got := r.runs("myapp"); got != "MyApp" {
		t.Errorf("myapp runs %s", got)
	}
	r.key = admin
	r.call("POST", "/templates/tags", `{"target":"myapp:x","tags":["default"]}`, 201, nil)
}

// If a client has assigned the name of a template before the template exists, the assignment ends
// when the template is made. The client cannot assign the name again. Deleting the template then
// deletes no other snapshot.
func TestTagsBeforeTheirTemplate(t *testing.T) {
	r := startWith(t, apirig.Options{Tokens: []auth.Token{{Name: "one", Scope: auth.Run}}})
	admin := r.key
	r.key = header{"X-API-Key": r.Tokens["one"]}
	b := r.create(`{"templateID":"a.b"}`)
	r.call("POST", "/sandboxes/"+b.ID+"/snapshots", `{"name":"web:x"}`, 201, nil)
	r.call("POST", "/templates/tags", `{"target":"web:x","tags":["default"]}`, 201, nil)
	if got := r.runs("web"); got != "web.x" {
		t.Errorf("before the template: %s", got)
	}
	r.key = admin
	r.call("POST", "/sandboxes/"+r.create(`{"templateID":"a.b"}`).ID+"/snapshots", `{"name":"web"}`, 201, nil)
	if got := r.runs("web"); got != "web" {
		t.Errorf("web runs %s", got)
	}
	r.key = header{"X-API-Key": r.Tokens["one"]}
	r.call("POST", "/templates/tags", `{"target":"web:x","tags":["default"]}`, 403, nil)
	r.key = admin
	boxes, err := r.Sandboxes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range boxes {
		r.call("DELETE", "/sandboxes/"+b.ID, "", 204, nil)
	}
	r.call("DELETE", "/templates/web", "", 204, nil)
	r.call("GET", "/templates/web.x", "", 200, nil)
}
