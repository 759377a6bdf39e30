package e2b_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/host/vmfake"
)

// vol is the description of a volume.
type vol struct {
	ID     string `json:"volumeID"`
	Name   string `json:"name"`
	Token  string `json:"token"`
	Domain string `json:"domain"`
}

func (r *rig) createVolume(name string) (v vol) {
	r.t.Helper()
	r.call("POST", "/volumes", `{"name":"`+name+`"}`, 201, &v)
	return v
}

// volumes() returns the names of the volumes in the list.
func (r *rig) volumes() string {
	r.t.Helper()
	var list []vol
	r.call("GET", "/volumes", "", 200, &list)
	names := make([]string, len(list))
	for i, v := range list {
		names[i] = v.Name
	}
	return strings.Join(names, " ")
}

// startSlots starts an API with the template "slots", whose sandboxes can mount two volumes.
func startSlots(t *testing.T, o apirig.Options) *rig {
	t.Helper()
	o.Guest = vmfake.Guest{All: &vmfake.VMMs{}}
	r := startWith(t, o)
	bake := r.Parent
	bake.Tag, bake.VolumeSlots = "slots", 2
	if _, err := r.Bake(t.Context(), bake); err != nil {
		t.Fatal(err)
	}
	return r
}

// This API has the same volumes as /v1.
func TestVolumes(t *testing.T) {
	r := start(t)
	var list []vol
	if r.call("GET", "/volumes", "", 200, &list); list == nil || len(list) != 0 {
		t.Errorf("without volumes: %v, want an empty list", list)
	}
	made := r.createVolume("data")
	if got, err := r.Volume(t.Context(), "data"); err != nil || got.ID != made.ID || got.SizeBytes != 1<<30 {
		t.Errorf("made %+v, and /v1 has %+v, %v", made, got, err)
	}
	if made.Name != "data" || made.Token == "" || made.Domain != apirig.Domain {
		t.Errorf("%+v: want a token, and the domain of the daemon", made)
	}
	if _, err := r.CreateVolume(t.Context(), client.VolumeRequest{Name: "other", SizeMiB: 16}); err != nil {
		t.Fatal(err)
	}
	if got := r.volumes(); got != "data other" {
		t.Errorf("the volumes are %s", got)
	}
	var got vol
	if r.call("GET", "/volumes/"+made.ID, "", 200, &got); got != made {
		t.Errorf("%+v, want %+v", got, made)
	}
	r.call("POST", "/volumes", `{"name":"data"}`, 409, nil)
	for _, body := range []string{`{"name":"a/b"}`, `{}`, ``, `{`} {
		r.call("POST", "/volumes", body, 400, nil)
	}
	r.call("GET", "/volumes/data", "", 404, nil) // the name is not an id
	r.call("DELETE", "/volumes/data", "", 404, nil)
	r.call("DELETE", "/volumes/"+made.ID, "", 204, nil)
	r.call("DELETE", "/volumes/"+made.ID, "", 404, nil)
	again := r.createVolume("data")
	r.call("GET", "/volumes/"+made.ID, "", 404, nil)
	if again.ID == made.ID {
		t.Error("a new volume has the id of a removed one")
	}
}

// A token with a prefix has only the volumes whose names begin with the prefix, and needs the same
// scopes as in /v1.
func TestVolumesOfTenants(t *testing.T) {
	r := startSlots(t, apirig.Options{Tokens: []auth.Token{{Name: "a", Scope: auth.Run, Prefix: "team-a/"},
		{Name: "b", Scope: auth.Run, Prefix: "team-b/"}, {Name: "reader", Scope: auth.Read}}})
	as := func(name string) header { return header{"X-API-Key": "e2b_" + r.Tokens[name]} }
	admin := r.key
	if _, err := r.Fork(t.Context(), client.ForkRequest{SnapshotTag: "slots", N: 1}); err != nil {
		t.Fatal(err)
	}
	common := r.createVolume("common")
	r.key = as("b")
	own := r.createVolume("team-b.data")
	r.key = as("a")
	for _, v := range []vol{common, own} {
		for _, method := range []string{"GET", "DELETE"} {
			r.call(method, "/volumes/"+v.ID, "", 404, nil)
		}
		// A sandbox of client a cannot mount the volume of client b, and the answer does not tell
		// whether the volume exists.
		for _, name := range []string{v.Name, v.Name + ":ro", "team-b.none"} {
			if answer, text := r.send("POST", "/v2/sandboxes", r.key, `{"templateID":"slots","volumeMounts":[{"name":"`+name+
				`","path":"/d"}]}`); answer.StatusCode != http.StatusNotFound || !strings.Contains(text, "not found") {
				t.Errorf("mount %s: %s %s", name, answer.Status, text)
			}
		}
	}
	for _, name := range []string{"common", "team-b.data", "free"} {
		r.call("POST", "/volumes", `{"name":"`+name+`"}`, 403, nil)
	}
	for who, want := range map[string]string{"a": "", "b": "team-b.data", "reader": "common team-b.data"} {
		if r.key = as(who); r.volumes() != want {
			t.Errorf("%s has the volumes %q, want %q", who, r.volumes(), want)
		}
	}
	r.key = as("reader")
	r.call("GET", "/volumes/"+own.ID, "", 200, nil)
	r.call("POST", "/volumes", `{"name":"x"}`, 403, nil)
	r.call("DELETE", "/volumes/"+own.ID, "", 403, nil)
	r.key = header{"X-API-Key": "e2b_00"}
	r.call("GET", "/volumes", "", 401, nil)
	r.key = admin
	if got := r.volumes(); got != "common team-b.data" {
		t.Errorf("the volumes are %s", got)
	}
}

// If the name of a volume in a request does not end with a mode, the sandbox can write to the
// volume.
func TestVolumesOfSandboxes(t *testing.T) {
	r := startSlots(t, apirig.Options{})
	data := r.createVolume("data")
	other := r.createVolume("other")
	const mount = `{"templateID":"slots","volumeMounts":[{"name":"data","path":"/data"},` +
		`{"name":"other:ro","path":"/other"}]}`
	b := r.create(mount)
	if s, err := r.Sandbox(t.Context(), b.ID); err != nil || fmt.Sprint(s.Volumes) != "[{data /data } {other /other ro}]" {
		t.Errorf("/v1 has the volumes %v, %v", s.Volumes, err)
	}
	type described struct{ VolumeMounts []struct{ Name, Path string } }
	var one described
	var list []described
	r.call("GET", "/sandboxes/"+b.ID, "", 200, &one)
	r.call("GET", "/v2/sandboxes", "", 200, &list)
	if want := "{[{data /data} {other /other}]}"; fmt.Sprint(one) != want || fmt.Sprint(list) != "["+want+"]" {
		t.Errorf("the sandbox is %v, in the list %v, want %s", one, list, want)
	}
	r.call("POST", "/v2/sandboxes", mount, 409, nil) // a second writer
	r.call("DELETE", "/volumes/"+data.ID, "", 409, nil)
	r.call("DELETE", "/volumes/"+other.ID, "", 204, nil)
	r.call("POST", "/sandboxes/"+b.ID+"/pause", `{}`, 204, nil) // a paused sandbox stays the writer
	r.call("DELETE", "/volumes/"+data.ID, "", 409, nil)
	var forked []struct{ Sandbox box }
	r.call("POST", "/sandboxes/"+b.ID+"/fork", `{"count":1}`, 201, &forked)
	s, err := r.Sandbox(t.Context(), forked[0].Sandbox.ID)
	if err != nil || len(s.Volumes) != 2 || s.Volumes[0].Mode != "copy" {
		t.Errorf("a fork has the volumes %v, %v, want a copy", s.Volumes, err)
	}
	r.call("DELETE", "/sandboxes/"+b.ID, "", 204, nil)
	r.call("DELETE", "/volumes/"+data.ID, "", 204, nil)
}

func TestRefusedMounts(t *testing.T) {
	r := startSlots(t, apirig.Options{})
	r.createVolume("data")
	for mounts, want := range map[string]struct {
		status int
		text   string
	}{
		`[{"name":"data","path":"/d","readOnly":true}]`: {400, "volumeMounts: json: unknown field \\\"readOnly\\\""},
		`[{"name":"data:rw","path":"/d"}]`:              {400, "volumeMounts[0].mode"},
		`[{"name":"data","path":"d"}]`:                  {400, "volumeMounts[0].path"},
		`[{"name":"data","path":"/proc/x"}]`:            {400, "volumeMounts[0].path"},
		`[{}]`:                                          {400, "volumeMounts[0].name"},
		`{"data":"/d"}`:                                 {400, "volumeMounts"},
		`[{"name":"none","path":"/d"}]`:                 {404, "volume \\\"none\\\": not found"},
	} {
		answer, text := r.send("POST", "/v2/sandboxes", r.key, `{"templateID":"slots","volumeMounts":`+mounts+`}`)
		if answer.StatusCode != want.status || !strings.Contains(text, want.text) {
			t.Errorf("%s: %s %s, want %d with %s", mounts, answer.Status, text, want.status, want.text)
		}
	}
	answer, text := r.send("POST", "/v2/sandboxes", r.key,
		`{"templateID":"a.b","volumeMounts":[{"name":"data","path":"/d"}]}`)
	if answer.StatusCode != http.StatusConflict || !strings.Contains(text, "--volume-slots") {
		t.Errorf("without slots: %s %s", answer.Status, text)
	}
	for _, none := range []string{`null`, `[]`} {
		r.create(`{"templateID":"a.b","volumeMounts":` + none + `}`)
	}
}
