package docker_test

import (
	"bufio"
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/daemon/docker"
)

// names returns the names of all images, sorted.
func (r *rig) names() string {
	r.t.Helper()
	var list []struct{ RepoTags []string }
	r.call("GET", "/images/json", "", 200, &list)
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
	// A name that no snapshot can have.
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
	// The end of a container does not keep its files from being an image.
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
	r.call("DELETE", "/images/a.b", "", 409, nil) // it has further names
	r.call("DELETE", "/images/"+id, "", 409, nil) // the same
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

func TestDamagedTags(t *testing.T) {
	r := start(t)
	const rest = `"id":"x","made":false,"who":"x"}]}`
	for _, text := range []string{"{", `{"version":1,"names":[{"name":"a:1","snapshot":"../x",` + rest,
		`{"version":1,"names":[{"name":"A:1","snapshot":"x",` + rest, `{"version":1,"names":[]}`} {
		if err := os.WriteFile(filepath.Join(r.Docker.Dir, "images"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := docker.New(r.Docker.Config); err == nil || !strings.Contains(err.Error(), "these names are lost") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestPrune(t *testing.T) {
	r := start(t)
	r.running("?name=up")
	r.create("?name=keep", `,"Labels":{"keep":"1"}`)
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
	// Past events until a time.
	_, text := r.send("GET", `/events?since=1&until=2&filters={"event":["create"]}`, "")
	if text != "" {
		t.Errorf("events of 1970: %s", text)
	}
	r.call("GET", `/events?filters={"other":["x"]}`, "", 400, nil)
}
