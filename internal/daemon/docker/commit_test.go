package docker_test

import (
	"bufio"
	"encoding/json"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/docker"
)

// names() returns the names of all images, sorted.
func (r *rig) names() string {
	r.t.Helper()
	return imageNames(r.t, []byte(r.call("GET", "/images/json", "", 200, nil)))
}

// imageNames returns the names in a list of images, sorted by image.
func imageNames(t *testing.T, p []byte) string {
	t.Helper()
	var list []struct{ RepoTags []string }
	if err := json.Unmarshal(p, &list); err != nil {
		t.Fatalf("%s: %v", p, err)
	}
	var names []string
	for _, i := range list {
		names = append(names, strings.Join(i.RepoTags, "+"))
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// commit makes an image of a container, and returns its id.
func (r *rig) commit(query string) string {
	r.t.Helper()
	var made struct {
		ID string `json:"Id"`
	}
	r.call("POST", "/commit?"+query, "{}", 201, &made)
	return made.ID
}

func (r *rig) imageID(name string) string {
	r.t.Helper()
	var i struct {
		ID string `json:"Id"`
	}
	r.call("GET", "/images/"+name+"/json", "", 200, &i)
	return i.ID
}

func TestCommit(t *testing.T) {
	r := start(t)
	r.running("?name=box")
	first := r.commit("container=box&repo=work&tag=v1&comment=why&author=me")
	if got := r.names(); got != "a.b:latest work.v1:latest" {
		t.Errorf("after a commit: %s", got)
	}
	var i struct{ ID, Comment, Author string }
	if r.call("GET", "/images/work:v1/json", "", 200, &i); i.ID != first || i.Comment != "why" || i.Author != "me" {
		t.Errorf("%+v", i)
	}
	if _, err := r.Snapshot(t.Context(), "work.v1"); err != nil {
		t.Errorf("the snapshot of the image: %v", err)
	}
	// The name moves to the second image. The first one keeps only the tag of its snapshot.
	second := r.commit("container=box&repo=work&tag=v1")
	if second == first || r.imageID("work:v1") != second || r.imageID(first[7:]) != first {
		t.Errorf("first %s, second %s, now %s", first, second, r.imageID("work:v1"))
	}
	// No snapshot can have this name as its tag.
	third := r.commit("container=box&repo=team/app")
	if r.imageID("team/app:latest") != third || r.imageID("docker.io/team/app") != third {
		t.Error("team/app")
	}
	var c struct {
		ID string `json:"Id"`
	}
	r.call("POST", "/containers/create", `{"Image":"team/app"}`, 201, &c)
	r.call("DELETE", "/containers/"+c.ID, "", 204, nil)
	r.call("POST", "/commit?container=box&changes=CMD+true", "{}", 400, nil)
	r.call("POST", "/commit?container=box&repo=x", `{"Cmd":["true"]}`, 400, nil)
	r.call("POST", "/commit?container=box&repo=UPPER", "{}", 400, nil)
	r.call("POST", "/commit?container=none&repo=x", "{}", 404, nil)
	r.call("DELETE", "/images/team/app", "", 200, nil) // the snapshot was made for this name
	r.call("GET", "/images/"+third+"/json", "", 404, nil)
	// An image can also be made of a container whose main process has ended.
	r.call("POST", "/containers/box/kill", "", 204, nil)
	r.commit("container=box&repo=ended")
}

func TestTags(t *testing.T) {
	r := start(t)
	id := r.imageID("a.b")
	r.call("POST", "/images/a.b/tag?repo=other&tag=1", "", 201, nil)
	r.call("POST", "/images/a.b/tag?repo=reg.test:5000/x/y", "", 201, nil)
	if got := r.names(); got != "a.b:latest+other:1+reg.test:5000/x/y:latest" {
		t.Error(got)
	}
	if r.imageID("other:1") != id || r.imageID("reg.test:5000/x/y") != id {
		t.Error("names")
	}
	for _, to := range []string{"", "Upper", "a b", "x:y:z"} {
		r.call("POST", "/images/a.b/tag?repo="+url.QueryEscape(to), "", 400, nil)
	}
	r.call("POST", "/images/none/tag?repo=x", "", 404, nil)
	if text := r.call("POST", "/images/a.b/push", "", 400, nil); !strings.Contains(text, "forkd push") {
		t.Error(text)
	}
	r.call("DELETE", "/images/a.b", "", 409, nil) // the image has further names
	r.call("DELETE", "/images/"+id, "", 409, nil) // the same, by the image's id
	r.call("DELETE", "/images/other:1", "", 200, nil)
	r.call("GET", "/images/other:1/json", "", 404, nil)
	next, err := docker.New(r.Docker.Config) // the next daemon knows the names
	if err != nil {
		t.Fatal(err)
	}
	next.Close()
	var gone []struct{ Untagged, Deleted string }
	r.call("DELETE", "/images/reg.test:5000/x/y", "", 200, nil)
	if r.call("DELETE", "/images/a.b", "", 200, &gone); len(gone) != 2 || gone[1].Deleted != id {
		t.Errorf("%+v", gone)
	}
	if got := r.names(); got != "" {
		t.Error(got)
	}
}

// tagsFile returns the path of the file with the names of images.
func (r *rig) tagsFile() string { return filepath.Join(r.Docker.Dir, "images") }

// nextNames starts the next daemon, which reads the records of this daemon. It returns the names of
// images that the next daemon has.
func (r *rig) nextNames() string {
	r.t.Helper()
	next, err := docker.New(r.Docker.Config)
	if err != nil {
		r.t.Fatal(err)
	}
	defer next.Close()
	req := httptest.NewRequest("GET", "/images/json", nil)
	req.Header.Set("Authorization", "Bearer "+apirig.Token)
	w := httptest.NewRecorder()
	next.ServeHTTP(w, req)
	return imageNames(r.t, w.Body.Bytes())
}

// If a daemon cannot read the file of names, it starts without names, and keeps the file.
func TestDamagedTags(t *testing.T) {
	r := start(t)
	for _, text := range []string{"{", `{"version":1,"names":[]}`, `{"version":9}`} {
		if err := os.WriteFile(r.tagsFile(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := r.nextNames(); got != "a.b:latest" {
			t.Errorf("%s: %s", text, got)
		}
		if p, err := os.ReadFile(r.tagsFile() + ".refused"); err != nil || string(p) != text {
			t.Errorf("%s: the file became %q, %v", text, p, err)
		}
	}
}

// A daemon leaves out only the names that are not valid.
func TestBadTags(t *testing.T) {
	r := start(t)
	r.call("POST", "/images/a.b/tag?repo=good", "", 201, nil)
	p, err := os.ReadFile(r.tagsFile())
	if err != nil {
		t.Fatal(err)
	}
	head, entry, _ := strings.Cut(string(p), "[")
	entry, tail, _ := strings.Cut(entry, "]")
	for _, bad := range []string{strings.Replace(entry, "good:latest", "A:1", 1),
		strings.Replace(entry, "good:latest", "library/:1", 1), strings.Replace(entry, "good:latest", "library/x:1", 1),
		strings.Replace(entry, `"a.b"`, `"../x"`, 1), strings.Replace(entry, "good:", longRepository+":", 1)} {
		if err := os.WriteFile(r.tagsFile(), []byte(head+"["+bad+","+entry+"]"+tail), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := r.nextNames(); got != "a.b:latest+good:latest" {
			t.Errorf("%s: %s", bad, got)
		}
	}
}

// longRepository is a repository that is longer than Docker permits.
var longRepository = strings.Repeat("a.", 125) + "b/team" // 256 characters

// Names of images have a maximum length, even before the first slash.
func TestLongTags(t *testing.T) {
	r := start(t)
	r.create("?name=box", "")
	for _, repository := range []string{longRepository, strings.Repeat("a.", 7400) + "b/x"} {
		r.call("POST", "/images/a.b/tag?tag=t&repo="+repository, "", 400, nil)
		r.call("POST", "/commit?container=box&tag=t&repo="+repository, "{}", 400, nil)
		r.call("POST", "/images/create?tag=t&fromImage="+repository, "", 400, nil)
	}
	r.call("POST", "/images/a.b/tag?tag="+strings.Repeat("t", 128)+"&repo="+longRepository[2:], "", 201, nil)
}

// The next daemon can read each name that this daemon accepts.
func TestRepeatedBeginningsOfTags(t *testing.T) {
	r := start(t)
	for _, to := range []string{"library/library/", "docker.io/library/", "docker.io/docker.io/", "x//y", "/x", "x/"} {
		r.call("POST", "/images/a.b/tag?tag=t&repo="+url.QueryEscape(to), "", 400, nil)
	}
	r.call("POST", "/images/a.b/tag?tag=t&repo=library/docker.io/library/library/x", "", 201, nil)
	r.call("POST", "/images/a.b/tag?tag=t&repo=docker.io/docker.io/library/team/y", "", 201, nil)
	const want = "a.b:latest+x:t+team/y:t"
	if got := r.names(); got != want {
		t.Error(got)
	}
	if got := r.nextNames(); got != want {
		t.Errorf("the next daemon: %s", got)
	}
	if r.imageID("library/library/x:t") != r.imageID("x:t") {
		t.Error("one name leads to two images")
	}
}

// isPruned reports whether a line of the audit log says that a sandbox was pruned.
func (r *rig) isPruned(id string) bool {
	r.t.Helper()
	log, err := os.ReadFile(r.AuditLog)
	if err != nil {
		r.t.Fatal(err)
	}
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "/containers/prune") && strings.Contains(line, `"sandboxes":["`+id+`"]`) {
			return true
		}
	}
	return false
}

func TestPrune(t *testing.T) {
	r := start(t)
	r.running("?name=up")
	r.create("?name=keep", `,"Labels":{"keep":"1"}`)
	var kept struct{ ForkdSandbox string }
	r.call("GET", "/containers/keep/json", "", 200, &kept)
	r.create("?name=idle", `,"Labels":{"tmp":"1"}`)
	var p struct{ ContainersDeleted []string }
	r.call("POST", `/containers/prune?filters={"label":["tmp"]}`, "", 200, &p)
	if len(p.ContainersDeleted) != 1 || len(r.list("all=1")) != 2 {
		t.Errorf("by label: %+v", p)
	}
	r.call("POST", `/containers/prune?filters={"until":["24h"]}`, "", 200, &p)
	if len(p.ContainersDeleted) != 0 {
		t.Errorf("older than a day: %+v", p)
	}
	r.call("POST", `/containers/prune?filters={"until":["x"]}`, "", 400, nil)
	r.call("POST", "/containers/prune", "", 200, &p)
	if len(p.ContainersDeleted) != 1 || r.list("all=1")[0].Names[0] != "/up" {
		t.Errorf("all: %+v", p)
	}
	for begun := time.Now(); !r.isPruned(kept.ForkdSandbox); time.Sleep(5 * time.Millisecond) {
		if time.Since(begun) > limit {
			t.Fatal("the audit log does not name the container")
		}
	}
	r.call("POST", "/images/prune", "", 200, nil)
	r.call("POST", `/images/prune?filters={"dangling":["false"]}`, "", 400, nil)
	if got := r.names(); got != "a.b:latest" {
		t.Error(got)
	}
}

func TestEvents(t *testing.T) {
	r := start(t)
	resp, err := r.http.Get("http://docker/v1.44/events?filters=" + url.QueryEscape(`{"type":["container"]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	id := r.create("?name=box", `,"Cmd":["sh","-c","exit 4"],"Labels":{"k":"v"}`)
	r.call("POST", "/containers/box/start", "", 204, nil)
	r.wait("box")
	r.call("DELETE", "/containers/box", "", 204, nil)
	in, seen := bufio.NewScanner(resp.Body), map[string]map[string]string{}
	for len(seen) < 4 && in.Scan() {
		var e struct {
			ID, Type, Action string
			Actor            struct{ Attributes map[string]string }
		}
		if err := json.Unmarshal(in.Bytes(), &e); err != nil || e.ID != id || e.Type != "container" {
			t.Fatalf("%s: %v", in.Bytes(), err)
		}
		seen[e.Action] = e.Actor.Attributes
	}
	for _, action := range []string{"create", "start", "die", "destroy"} {
		if seen[action]["name"] != "box" {
			t.Errorf("%s: %v", action, seen[action])
		}
	}
	if seen["die"]["exitCode"] != "4" || seen["create"]["k"] != "v" {
		t.Errorf("%v", seen)
	}
	// The client asks for past events until a time.
	_, text := r.send("GET", `/events?since=1&until=2&filters={"event":["create"]}`, "")
	if text != "" {
		t.Errorf("events of 1970: %s", text)
	}
	r.call("GET", `/events?filters={"other":["x"]}`, "", 400, nil)
}
