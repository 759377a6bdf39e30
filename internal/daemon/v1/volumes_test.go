package v1_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/host/vmfake"
)

func names(list []client.Volume) (names []string) {
	for _, v := range list {
		names = append(names, v.Name)
	}
	return names
}

func TestVolumes(t *testing.T) {
	dir := t.TempDir()
	t.Run("first daemon", func(t *testing.T) { lifeOfVolumes(t, dir) })
	t.Run("next daemon", func(t *testing.T) {
		list, err := start(t, apirig.Options{Dir: dir}).Volumes(t.Context())
		if err != nil || !slices.Equal(names(list), []string{"a", "data"}) {
			t.Errorf("%v %v", names(list), err)
		}
	})
}

// lifeOfVolumes creates the volumes a, b and data, and removes b.
func lifeOfVolumes(t *testing.T, dir string) {
	t.Helper()
	r := start(t, apirig.Options{Dir: dir})
	ctx := t.Context()
	made, err := r.CreateVolume(ctx, client.VolumeRequest{Name: "data", Labels: map[string]string{"job": "7"}})
	must(t, err)
	if made.Name != "data" || made.ID == "" || made.SizeBytes != 1<<30 || made.DiskBytes == 0 || made.Owner == "" ||
		made.Labels["job"] != "7" || made.CreatedAt == 0 {
		t.Errorf("%+v", made)
	}
	for _, name := range []string{"b", "a"} {
		must(t, second(r.CreateVolume(ctx, client.VolumeRequest{Name: name, SizeMiB: 16})))
	}
	if got, err := r.Volume(ctx, "data"); err != nil || got.ID != made.ID {
		t.Errorf("%+v %v", got, err)
	}
	list, err := r.Volumes(ctx)
	if err != nil || !slices.Equal(names(list), []string{"a", "b", "data"}) {
		t.Errorf("%v %v", names(list), err)
	}
	list, next, err := r.VolumePage(ctx, client.PageRequest{Limit: 2})
	if err != nil || !slices.Equal(names(list), []string{"a", "b"}) || next == "" {
		t.Errorf("%v %q %v", names(list), next, err)
	}
	list, next, err = r.VolumePage(ctx, client.PageRequest{Limit: 2, Cursor: next})
	if err != nil || !slices.Equal(names(list), []string{"data"}) || next != "" {
		t.Errorf("%v %q %v", names(list), next, err)
	}
	list, _, err = r.VolumePage(ctx, client.PageRequest{Labels: []string{"job=7"}})
	if err != nil || !slices.Equal(names(list), []string{"data"}) {
		t.Errorf("%v %v", names(list), err)
	}
	copied, err := r.SnapshotVolume(ctx, "data", client.VolumeSnapshotRequest{Name: "b.2",
		Labels: map[string]string{"job": "8"}})
	if err != nil || copied.ID == made.ID || copied.SizeBytes != made.SizeBytes || copied.Labels["job"] != "8" {
		t.Errorf("%+v %v", copied, err)
	}
	must(t, r.DeleteVolume(ctx, "b.2"))
	must(t, r.DeleteVolume(ctx, "b"))
	for what, err := range map[string]error{"get": second(r.Volume(ctx, "b")), "delete": r.DeleteVolume(ctx, "b"),
		"snapshot": second(r.SnapshotVolume(ctx, "b", client.VolumeSnapshotRequest{Name: "c"}))} {
		if !errors.Is(err, client.ErrVolumeNotFound) {
			t.Errorf("%s after the removal: %v", what, err)
		}
	}
}

func TestRefusedVolumeRequests(t *testing.T) {
	dir := t.TempDir()
	// The volume has no record. An earlier daemon could leave such a volume on a damaged disk.
	must(t, os.MkdirAll(filepath.Join(dir, "volumes", "damaged"), 0o700))
	r := start(t, apirig.Options{Dir: dir})
	ctx := t.Context()
	must(t, second(r.CreateVolume(ctx, client.VolumeRequest{Name: "data", SizeMiB: 1024})))
	for _, c := range []struct {
		req  client.VolumeRequest
		want client.ErrorCode
	}{
		{client.VolumeRequest{Name: "data"}, client.ErrVolumeExists},
		{client.VolumeRequest{Name: "damaged"}, client.ErrVolumeExists},
		{client.VolumeRequest{Name: "large", SizeMiB: apirig.VolumeQuota >> 20}, client.ErrVolumeQuota},
	} {
		if _, err := r.CreateVolume(ctx, c.req); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v, want %s", c.req, err, c.want)
		}
	}
	for what, err := range map[string]error{"get": second(r.Volume(ctx, "damaged")), "delete": r.DeleteVolume(ctx,
		"damaged")} {
		if !errors.Is(err, client.ErrVolumeUnusable) {
			t.Errorf("%s of a damaged volume: %v", what, err)
		}
	}
	for body, field := range map[string]string{
		`{"name":"a/b"}`:                               "name",
		`{"name":"-a"}`:                                "name",
		`{"name":"a","size_mib":0}`:                    "size_mib",
		`{"name":"a","size_mib":15}`:                   "size_mib",
		`{"name":"a","size_mib":17592186044432}`:       "size_mib",
		`{"name":"a","labels":{"a b":"c"}}`:            "labels",
		`{"name":"a","size_mib":16,"unknown":"field"}`: "unknown",
	} {
		status, answer := request(t, http.MethodPost, r.URL+"/v1/volumes", body)
		if status != http.StatusBadRequest || answer["field"] != field {
			t.Errorf("%s: %d %v, want the field %s", body, status, answer, field)
		}
	}
	if list, err := r.Volumes(ctx); err != nil || !slices.Equal(names(list), []string{"data"}) {
		t.Errorf("%v %v", names(list), err)
	}
}

// Tokens with a prefix have only the volumes whose names begin with it.
func TestVolumesOfTenants(t *testing.T) {
	w := startTenants(t)
	ctx := t.Context()
	must(t, second(w.b.CreateVolume(ctx, client.VolumeRequest{Name: "team-b.data", SizeMiB: 16})))
	must(t, second(w.CreateVolume(ctx, client.VolumeRequest{Name: "common", SizeMiB: 16})))
	for what, err := range map[string]error{
		"get of b":      second(w.a.Volume(ctx, "team-b.data")),
		"get of all":    second(w.a.Volume(ctx, "common")),
		"delete of b":   w.a.DeleteVolume(ctx, "team-b.data"),
		"delete of all": w.a.DeleteVolume(ctx, "common"),
		"snapshot of b": second(w.a.SnapshotVolume(ctx, "team-b.data", client.VolumeSnapshotRequest{Name: "team-a.x"})),
	} {
		if !errors.Is(err, client.ErrVolumeNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// The answer does not tell whether the name exists.
	for _, name := range []string{"team-b.data", "team-b.other", "common"} {
		_, err := w.a.CreateVolume(ctx, client.VolumeRequest{Name: name, SizeMiB: 16})
		if !errors.Is(err, client.ErrScope) {
			t.Errorf("create %s: %v", name, err)
		}
	}
	_, err := w.b.SnapshotVolume(ctx, "team-b.data", client.VolumeSnapshotRequest{Name: "team-a.data"})
	if !errors.Is(err, client.ErrScope) {
		t.Errorf("a snapshot with a name of others: %v", err)
	}
	for who, want := range map[*client.Client]string{w.a: "[]", w.b: "[team-b.data]", w.Client: "[common team-b.data]"} {
		if list, err := who.Volumes(ctx); err != nil || fmt.Sprint(names(list)) != want {
			t.Errorf("%v %v, want %s", names(list), err, want)
		}
	}
	if v, err := w.b.Volume(ctx, "team-b.data"); err != nil || v.Owner != "" {
		t.Errorf("for b: %q %v, want no owner", v.Owner, err)
	}
	if v, err := w.Volume(ctx, "team-b.data"); err != nil || v.Owner != "token:b" {
		t.Errorf("for the admin: %q %v", v.Owner, err)
	}
}

// A sandbox names its volumes, and a volume names its writer. Errors have a code, and name the field.
func TestVolumesOfSandboxes(t *testing.T) {
	r := start(t, apirig.Options{Guest: vmfake.Guest{All: &vmfake.VMMs{}}})
	ctx := t.Context()
	bake := r.Parent
	bake.VolumeSlots = 1
	made, err := r.Bake(ctx, bake)
	must(t, err)
	if made.VolumeSlots != 1 {
		t.Errorf("the snapshot has %d slots", made.VolumeSlots)
	}
	for _, name := range []string{"a", "b"} {
		must(t, second(r.CreateVolume(ctx, client.VolumeRequest{Name: name, SizeMiB: 16})))
	}
	fork := func(n int, v ...client.VolumeMount) (client.Forked, error) {
		return r.Fork(ctx, client.ForkRequest{SnapshotTag: bake.Tag, N: n, Volumes: v})
	}
	data := client.VolumeMount{Name: "a", Path: "/data"}
	f, err := fork(1, data)
	must(t, err)
	id := f.Sandboxes[0].ID
	if s, err := r.Sandbox(ctx, id); err != nil || !slices.Equal(s.Volumes, []client.VolumeMount{data}) {
		t.Errorf("the sandbox has %+v, %v", s.Volumes, err)
	}
	if v, err := r.Volume(ctx, "a"); err != nil || v.Writer != id {
		t.Errorf("the volume has the writer %q, %v", v.Writer, err)
	}
	other, missing := client.VolumeMount{Name: "b", Path: "/b"}, client.VolumeMount{Name: "c", Path: "/c"}
	diskOnly := client.BranchRequest{Tag: "x", DiskOnly: true}
	for what, c := range map[string]struct {
		do   func() error
		want error
	}{
		"a second writer":  {func() error { return second(fork(1, data)) }, client.ErrVolumeInUse},
		"too many volumes": {func() error { return second(fork(1, data, other)) }, client.ErrNoVolumeSlots},
		"no such volume":   {func() error { return second(fork(1, missing)) }, client.ErrVolumeNotFound},
		"a disk's branch":  {func() error { return second(r.Branch(ctx, id, diskOnly)) }, client.ErrSandboxHasVolumes},
		"a removal":        {func() error { return r.DeleteVolume(ctx, "a") }, client.ErrVolumeInUse},
	} {
		if err := c.do(); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
	}
	must(t, second(r.Branch(ctx, id, client.BranchRequest{Tag: "x"})))
	must(t, second(r.Suspend(ctx, id)))
	if v, err := r.Volume(ctx, "a"); err != nil || v.Writer != id {
		t.Errorf("while the sandbox is suspended: writer %q, %v", v.Writer, err)
	}
	for field, v := range map[string]client.VolumeMount{
		"volumes[0].name": {Name: "-", Path: "/b"}, "volumes[0].path": {Name: "b", Path: "/proc/b"},
		"volumes[0].mode": {Name: "b", Path: "/b", Mode: "rw"},
	} {
		if _, err := fork(1, v); !errors.Is(err, client.ErrInvalidField) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := fork(2, other); !errors.Is(err, client.ErrInvalidField) {
		t.Errorf("two writers at once: %v", err)
	}
	must(t, r.Kill(ctx, id))
	if v, err := r.Volume(ctx, "a"); err != nil || v.Writer != "" {
		t.Errorf("after the end of the sandbox: writer %q, %v", v.Writer, err)
	}
	must(t, r.DeleteVolume(ctx, "a"))
}
