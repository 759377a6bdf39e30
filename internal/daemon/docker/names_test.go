package docker_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/docker"
)

// startUser starts a rig, and returns it for root and for a user. The user has the scope run, and
// the image evil.
func startUser(t *testing.T, o apirig.Options) (root, user *rig) {
	t.Helper()
	o.Tokens = []auth.Token{{Name: "user", Scope: auth.Run}}
	root = startWith(t, o)
	user = root.as("user")
	user.create("?name=box", "")
	user.commit("container=box&repo=evil")
	return root, user
}

// If a client asks for an image by its id, no name of another image hides this image.
func TestImageNamesLikeIDs(t *testing.T) {
	root, user := startUser(t, apirig.Options{})
	id := root.imageID("a.b")
	digits := strings.TrimPrefix(id, "sha256:")
	for _, query := range []string{"repo=sha256&tag=" + digits, "repo=" + digits, "repo=" + digits[:12],
		"repo=sha256"} {
		user.call("POST", "/images/evil/tag?"+query, "", 400, nil)
		user.call("POST", "/commit?container=box&"+strings.Replace(query, "repo=", "repo=library/", 1), "{}", 400, nil)
	}
	// Tags of snapshots have other rules.
	cl, err := client.New(root.URL, root.Tokens["user"])
	if err != nil {
		t.Fatal(err)
	}
	for _, tag := range []string{"sha256." + digits, digits, digits[:12]} {
		var c struct{ ForkdSandbox string }
		user.call("GET", "/containers/box/json", "", 200, &c)
		if _, err := cl.Branch(t.Context(), c.ForkdSandbox, client.BranchRequest{Tag: tag, Mode: "diff"}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{id, digits, digits[:12], digits[:20]} {
		if got := root.imageID(name); got != id {
			t.Errorf("%s leads to %s", name, got)
		}
	}
	root.call("GET", "/images/sha256:"+strings.Repeat("0", 64)+"/json", "", 404, nil)
}

// A client is allowed to take a name that is free. The name does not hide a snapshot that is made
// later with this tag.
func TestLaterSnapshotTakesName(t *testing.T) {
	root, user := startUser(t, apirig.Options{})
	evil := user.imageID("evil")
	user.call("POST", "/images/evil/tag?repo=py", "", 201, nil)
	if root.imageID("py") != evil {
		t.Fatal("the name leads elsewhere")
	}
	bake := root.Parent
	bake.Tag = "py"
	if _, err := root.Bake(t.Context(), bake); err != nil {
		t.Fatal(err)
	}
	if root.imageID("py") == evil || user.imageID("py:latest") == evil {
		t.Error("the name leads to the image of the client that took it before")
	}
	if got := root.names(); got != "a.b:latest evil:latest py:latest" {
		t.Error(got)
	}
	user.call("POST", "/images/evil/tag?repo=py", "", 403, nil)
	user.call("POST", "/commit?container=box&repo=py", "{}", 403, nil)
	user.call("DELETE", "/images/py", "", 403, nil)
	root.call("POST", "/images/evil/tag?repo=py", "", 201, nil) // root can; the name is now newer than the snapshot py
	if root.imageID("py") != evil {
		t.Error("root cannot move the name")
	}
	if got := root.nextNames(); got != " a.b:latest evil:latest+py:latest" { // the snapshot py has no name now
		t.Errorf("the next daemon: %s", got)
	}
}

// branch makes a snapshot of the client's container box through forkd's own API, which does not
// know the names of images.
func (r *rig) branch(token, tag string) {
	r.t.Helper()
	cl, err := client.New(r.URL, r.Tokens[token])
	if err != nil {
		r.t.Fatal(err)
	}
	var c struct{ ForkdSandbox string }
	r.as(token).call("GET", "/containers/box/json", "", 200, &c)
	if _, err := cl.Branch(r.t.Context(), c.ForkdSandbox, client.BranchRequest{Tag: tag, Mode: "diff"}); err != nil {
		r.t.Fatal(err)
	}
}

// A client with the scope run cannot take a name that root has given, not even with a snapshot that
// another API makes.
func TestNamesOfRootStay(t *testing.T) {
	root, user := startUser(t, apirig.Options{})
	root.call("POST", "/images/a.b/tag?repo=app", "", 201, nil)
	good := root.imageID("app")
	root.branch("user", "app")
	if root.imageID("app") != good || user.imageID("app:latest") != good {
		t.Error("the name leads to the snapshot of the client")
	}
	if got := root.nextNames(); got != " a.b:latest+app:latest evil:latest" { // the snapshot app has no name
		t.Errorf("the next daemon: %s", got)
	}
}

// A client with fewer rights may give an image the name of a registry's image. A pull does not
// mistake that image for the registry's image.
func TestPullOfATakenName(t *testing.T) {
	root, user := startUser(t, apirig.Options{Images: []string{"docker.io/team/app:latest"}})
	user.call("POST", "/images/evil/tag?repo=team/app", "", 201, nil)
	text := root.call("POST", "/images/create?fromImage=team/app", "", 409, nil)
	if !strings.Contains(text, "docker rmi") {
		t.Error(text)
	}
	root.call("DELETE", "/images/team/app", "", 200, nil)
	for _, want := range []string{"Downloaded newer image", "up to date"} {
		if _, text := root.send("POST", "/images/create?fromImage=team/app", ""); !strings.Contains(text, want) {
			t.Errorf("%s, want %s", text, want)
		}
	}
}

// A client with the scope read sees neither commands nor variables. They may contain secrets.
func TestSecretsAreHidden(t *testing.T) {
	r := startWith(t, apirig.Options{Tokens: []auth.Token{{Name: "reader", Scope: auth.Read},
		{Name: "user", Scope: auth.Run}}, Images: []string{"docker.io/library/tool:1"}})
	if _, text := r.send("POST", "/images/create?fromImage=tool&tag=1", ""); !strings.Contains(text, "Downloaded") {
		t.Fatal(text)
	}
	id := r.create("?name=box", `,"Entrypoint":["s3cret-program"],"Cmd":["s3cret"],"Env":["PASSWORD=s3cret"]`)
	r.send("POST", "/containers/box/start", "") // fails; the error has the name of the program
	var i struct{ Config struct{ Env []string } }
	if r.call("GET", "/images/tool:1/json", "", 200, &i); len(i.Config.Env) == 0 {
		t.Fatal("the image has no variables")
	}
	variable, _, _ := strings.Cut(i.Config.Env[0], "=")
	for path, secret := range map[string]string{"/containers/json?all=1": "s3cret",
		"/containers/" + id + "/json": "s3cret", "/images/tool:1/json": variable} {
		if text := r.as("user").call("GET", path, "", 200, nil); !strings.Contains(text, secret) {
			t.Errorf("%s, for the scope run: %s", path, text)
		}
		if text := r.as("reader").call("GET", path, "", 200, nil); strings.Contains(text, secret) {
			t.Errorf("%s, for the scope read: %s", path, text)
		}
	}
}

// A request to create a container may have an entry only for the network that its network mode
// names.
func TestNetworkEntries(t *testing.T) {
	r := start(t)
	body := func(mode, network string) string {
		return `{"Image":"a.b","HostConfig":{"NetworkMode":"` + mode + `"},"NetworkingConfig":{"EndpointsConfig":{"` +
			network + `":{"Links":null}}}}`
	}
	for mode, network := range map[string]string{"": "none", "default": "none", "bridge": "net1", "none": "bridge"} {
		text := r.call("POST", "/containers/create", body(mode, network), 400, nil)
		if !strings.Contains(text, "EndpointsConfig: network "+network) {
			t.Errorf("%q: %s", mode, text)
		}
	}
	for mode, network := range map[string]string{"": "bridge", "default": "default", "none": "none"} {
		r.call("POST", "/containers/create", body(mode, network), 201, nil)
	}
}

// A daemon that cannot write the names of images starts nevertheless.
func TestUnwritableTags(t *testing.T) {
	r := start(t)
	r.call("POST", "/images/a.b/tag?repo=good", "", 201, nil)
	p, err := os.ReadFile(r.tagsFile())
	if err != nil {
		t.Fatal(err)
	}
	head, entry, _ := strings.Cut(string(p), "[")
	entry, tail, _ := strings.Cut(entry, "]")
	stale := strings.NewReplacer("good", "stale", `"snapshot":"a.b"`, `"snapshot":"gone"`).Replace(entry)
	dir, err := os.MkdirTemp("/tmp", "fkd") // a directory that all users can reach
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "images")
	text := head + "[" + stale + "," + entry + "]" + tail
	err = errors.Join(os.WriteFile(file, []byte(text), 0o600), os.Chmod(file, 0o644), os.Chmod(dir, 0o555))
	if err != nil {
		t.Fatal(err)
	}
	cfg := r.Docker.Config
	cfg.Dir = dir
	next, err := unprivileged(t, func() (*docker.Server, error) { return docker.New(cfg) })
	if err != nil {
		t.Fatal(err)
	}
	next.Close()
	if p, err := os.ReadFile(file); err != nil || string(p) != text {
		t.Errorf("the file was written: %s, %v", p, err)
	}
}

// unprivileged calls f without the rights of root on files.
func unprivileged[T any](t *testing.T, f func() (T, error)) (T, error) {
	t.Helper()
	if os.Geteuid() != 0 {
		return f()
	}
	const nobody = 65534
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if _, err := unix.SetfsuidRetUid(nobody); err != nil {
		t.Fatal(err)
	}
	defer unix.SetfsuidRetUid(0)
	return f()
}

// The names of a snapshot are removed with it, even if another API deletes it.
func TestTagsOfDeletedSnapshot(t *testing.T) {
	r := start(t)
	bake := r.Parent
	bake.Tag = "py"
	if _, err := r.Bake(t.Context(), bake); err != nil {
		t.Fatal(err)
	}
	r.call("POST", "/images/py/tag?repo=other", "", 201, nil)
	if err := r.DeleteSnapshot(t.Context(), "py", client.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		_, err := os.Stat(r.tagsFile())
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if time.Since(begun) > limit {
			t.Fatalf("the name of a deleted snapshot is kept: %v", err)
		}
	}
	r.call("GET", "/images/other/json", "", 404, nil)
}

// The record of a container stays small, whatever its command is. If the record were too long, the
// container's name would be lost.
func TestLongError(t *testing.T) {
	r := start(t)
	for _, program := range []string{strings.Repeat("b", 8000), strings.Repeat("/a", 3000)} {
		id := r.create("", `,"Cmd":["`+program+`"]`)
		r.send("POST", "/containers/"+id+"/start", "") // there is no such program
		s := r.state(id)
		if s.Status != "exited" || s.Error == "" || len(s.Error) > 1<<10 {
			t.Errorf("status %s, and an error of %d bytes: %.200s", s.Status, len(s.Error), s.Error)
		}
		var c struct{ ForkdSandbox string }
		r.call("GET", "/containers/"+id+"/json", "", 200, &c)
		p, err := os.ReadFile(filepath.Join(r.Docker.Dir, c.ForkdSandbox+".json"))
		if err != nil || len(p) > 4<<10 {
			t.Errorf("the record has %d bytes, %v", len(p), err)
		}
	}
}

// The history of an image has the images on which it builds, whether the request has its name or
// its id.
func TestHistory(t *testing.T) {
	r := start(t)
	r.create("?name=box", "")
	id := r.commit("container=box&repo=made")
	for _, name := range []string{"made", id} {
		var list []struct {
			ID string `json:"Id"`
		}
		r.call("GET", "/images/"+name+"/history", "", 200, &list)
		if len(list) != 2 || list[0].ID != id || list[1].ID != r.imageID("a.b") {
			t.Errorf("%s: %+v", name, list)
		}
	}
}
