package mcp_test

import (
	"slices"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/mcp"
)

// A model makes volumes, mounts them in new sandboxes and in copies, and removes them.
func TestVolumes(t *testing.T) {
	rig := apirig.Start(t, apirig.Options{Guest: vmfake.Guest{All: &vmfake.VMMs{}}})
	bake := rig.Parent
	bake.Tag, bake.VolumeSlots = "slots", 2
	if _, err := rig.Bake(t.Context(), bake); err != nil {
		t.Fatal(err)
	}
	c := connect(t, rig.Client, mcp.Run)
	var got struct{ Result []client.Volume }
	names := func() (list []string) {
		for _, v := range got.Result {
			list = append(list, v.Name)
		}
		return list
	}
	c.call("volumes", args{"action": "create", "name": "data", "size_mib": 64}, nil)
	c.call("volumes", args{"action": "copy", "from": "data", "name": "more"}, nil)
	c.call("volumes", args{}, &got)
	if !slices.Equal(names(), []string{"data", "more"}) || got.Result[1].SizeBytes != 64<<20 {
		t.Errorf("volumes %+v", got.Result)
	}
	var made struct{ Result []client.Sandbox }
	c.call("spawn_sandboxes", args{"snapshot_tag": "slots",
		"volumes": []args{{"name": "data", "path": "/data"}}}, &made)
	want := []client.VolumeMount{{Name: "data", Path: "/data"}}
	if len(made.Result) != 1 || !slices.Equal(made.Result[0].Volumes, want) {
		t.Fatalf("spawned %+v", made.Result)
	}
	id := made.Result[0].ID
	c.fails("volumes", args{"action": "delete", "name": "data"}, "volume_in_use", "volumes shows the writer")
	var copies struct {
		Sandboxes []struct {
			ID string `json:"sandbox_id"`
		}
	}
	c.call("fork", args{"sandbox_id": id, "volumes": []args{{"name": "more", "path": "/more", "mode": "ro"}}}, &copies)
	box, err := rig.Sandbox(t.Context(), copies.Sandboxes[0].ID)
	want = []client.VolumeMount{{Name: "data", Path: "/data", Mode: "copy"}, {Name: "more", Path: "/more", Mode: "ro"}}
	if err != nil || !slices.Equal(box.Volumes, want) {
		t.Errorf("the copy has the volumes %v, %v; want %v", box.Volumes, err, want)
	}
	c.call("volumes", args{"action": "attach", "name": "more", "sandbox_id": id, "path": "/more"}, &got)
	if got.Result[1].Name != "more" || got.Result[1].Writer != id {
		t.Errorf("attached: %+v", got.Result)
	}
	c.fails("volumes", args{"action": "attach", "name": "more", "sandbox_id": id, "path": "/more"}, "invalid_field")
	c.call("volumes", args{"action": "detach", "name": "data", "sandbox_id": id}, nil)
	box, err = rig.Sandbox(t.Context(), id)
	if want := []client.VolumeMount{{Name: "more", Path: "/more"}}; err != nil || !slices.Equal(box.Volumes, want) {
		t.Errorf("data is detached: %v, %v; want %v", box.Volumes, err, want)
	}
	c.fails("volumes", args{"action": "detach", "name": "data", "sandbox_id": id}, "volume_not_found")
	c.call("volumes", args{"action": "attach", "name": "data", "sandbox_id": id, "path": "/data", "mode": "ro"}, nil)
	c.call("volumes", args{"action": "detach", "name": "more", "sandbox_id": id}, nil)
	got.Result = nil
	c.call("volumes", args{"action": "delete", "name": "more"}, &got)
	if !slices.Equal(names(), []string{"data"}) {
		t.Errorf("after a deletion: %q", names())
	}
	for _, in := range []args{{"action": "create"}, {"action": "list", "name": "data"},
		{"action": "delete", "name": "data", "from": "x"}, {"action": "copy", "name": "x"},
		{"action": "attach", "name": "data", "path": "/data"}, {"action": "attach", "name": "data", "sandbox_id": id},
		{"action": "detach", "name": "data"}, {"action": "detach", "name": "data", "sandbox_id": id, "path": "/data"},
		{"action": "detach", "name": "data", "sandbox_id": id, "mode": "ro"}, {"action": "list", "sandbox_id": id}} {
		c.fails("volumes", in, "invalid_field")
	}
	c.fails("spawn_sandboxes", args{"snapshot_tag": "slots", "volumes": []args{{"name": "none", "path": "/data"}}},
		"volume_not_found", "volumes lists")
}

// The tools that make sandboxes can hold the requests of these sandboxes. The tool effects lists
// the held requests and ends the hold.
func TestHeldEffects(t *testing.T) {
	c := connect(t, start(t).Client, mcp.Run)
	var made struct{ Result []client.Sandbox }
	c.call("spawn_sandboxes", args{"snapshot_tag": "a.b", "hold_effects": []string{"api.example.com"},
		"hold_answer": "record"}, &made)
	id := made.Result[0].ID
	var e struct {
		Hosts   []string `json:"held_hosts"`
		Answer  string
		Effects []client.Effect
	}
	c.call("effects", args{"sandbox_id": id}, &e)
	if !slices.Equal(e.Hosts, []string{"api.example.com"}) || e.Answer != "record" || e.Effects == nil {
		t.Errorf("effects %+v", e)
	}
	var copies struct {
		Sandboxes []struct {
			ID string `json:"sandbox_id"`
		}
	}
	c.call("fork", args{"sandbox_id": id, "hold_effects": []string{"*.example.org"}}, &copies)
	c.call("effects", args{"sandbox_id": copies.Sandboxes[0].ID}, &e)
	if !slices.Contains(e.Hosts, "*.example.org") || !slices.Contains(e.Hosts, "api.example.com") {
		t.Errorf("a copy holds %q", e.Hosts)
	}
	var tried struct {
		ID string `json:"sandbox_id"`
	}
	c.call("fork_and_run", args{"sandbox_id": id, "command": "true", "hold_effects": []string{"*.example.net"}}, &tried)
	c.call("effects", args{"sandbox_id": tried.ID}, &e)
	if !slices.Contains(e.Hosts, "*.example.net") {
		t.Errorf("an attempt holds %q", e.Hosts)
	}
	c.call("effects", args{"sandbox_id": id, "release": true}, nil)
	if c.call("effects", args{"sandbox_id": id}, &e); len(e.Hosts) != 0 {
		t.Errorf("after the release: %+v", e)
	}
	c.fails("spawn_sandboxes", args{"snapshot_tag": "a.b", "hold_answer": "wait"}, "invalid_field", "hold_effects")
}
