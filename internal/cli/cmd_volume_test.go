package cli

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/host/vmfake"
)

func TestMiBValue(t *testing.T) {
	for text, want := range map[string]mibValue{"64": 64, "512m": 512, "2g": 2048, "2GiB": 2048, "1t": 1 << 20,
		"1TiB": 1 << 20} {
		var v mibValue
		if err := v.Set(text); err != nil || v != want {
			t.Errorf("%q: %d, %v, want %d", text, v, err, want)
		}
	}
	for _, text := range []string{"", "t", "-1g", "1.5g", "1p", "1tt"} {
		if new(mibValue).Set(text) == nil {
			t.Errorf("%q: taken", text)
		}
	}
}

// Docker's mode rw is the default, and a slash at the end of a path is omitted.
func TestParseVolume(t *testing.T) {
	for text, want := range map[string]client.VolumeMount{
		"data:/data":      {Name: "data", Path: "/data"},
		"data:/data:":     {Name: "data", Path: "/data"},
		"data:/data/:rw":  {Name: "data", Path: "/data"},
		"data:/a//b/:ro":  {Name: "data", Path: "/a/b", Mode: "ro"},
		"data:/data:copy": {Name: "data", Path: "/data", Mode: "copy"},
		"data:/:ro":       {Name: "data", Path: "/", Mode: "ro"}, // refused by the daemon
	} {
		if v, err := parseVolume(text); err != nil || v != want {
			t.Errorf("%s: %+v, %v", text, v, err)
		}
	}
	for _, text := range []string{"data", "data:", "data:data", "src:x:/y"} {
		if v, err := parseVolume(text); err == nil {
			t.Errorf("%s: %+v", text, v)
		}
	}
}

// The list of volumes has the writer of each, and the list of snapshots has their slots. The error
// about a volume that does not exist mentions a directory of the same name.
func TestVolumesAtTheCommandLine(t *testing.T) {
	rig := apirig.Start(t, apirig.Options{Guest: vmfake.Guest{All: &vmfake.VMMs{}}})
	t.Setenv(urlEnv, rig.URL)
	t.Setenv(tokenEnv, apirig.Token)
	for tag, slots := range map[string]uint32{"slots": 3, "none": 0} {
		bake := rig.Parent
		bake.Tag, bake.VolumeSlots = tag, slots
		if _, err := rig.Bake(t.Context(), bake); err != nil {
			t.Fatal(err)
		}
	}
	run := func(want int, args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		if code := Main(args, Stdio{In: strings.NewReader(""), Out: &out, Err: &errs}); code != want {
			t.Fatalf("%v: exit code %d, %s", args, code, errs.String())
		}
		return out.String() + errs.String()
	}
	row := func(table, name string) []string {
		for line := range strings.Lines(table) {
			if fields := strings.Fields(line); len(fields) > 0 && fields[0] == name {
				return fields
			}
		}
		return make([]string, 10)
	}
	if f := row(run(0, "images"), "slots"); f[5] != "3" {
		t.Errorf("the snapshot: %q", f)
	}
	run(0, "volume", "create", "data", "--size", "16m")
	if f := row(run(0, "volume", "ls"), "data"); f[5] != "-" {
		t.Errorf("without a writer: %q", f)
	}
	id, _, _ := strings.Cut(run(0, "fork", "slots", "-v", "data:/data/:rw"), "\n")
	if f := row(run(0, "volume", "ls"), "data"); f[5] != id {
		t.Errorf("with the writer %s: %q", id, f)
	}
	t.Chdir(t.TempDir())
	if text := run(1, "fork", "none", "-v", "src:/x"); !strings.Contains(text, "forkd volume create") {
		t.Error(text)
	}
	if err := os.Mkdir("src", 0o700); err != nil {
		t.Fatal(err)
	}
	if text := run(1, "fork", "none", "-v", "src:/x"); !strings.Contains(text, "-v ./src:/x") {
		t.Error(text)
	}
	if text := run(1, "fork", "none", "-v", "data:/x"); !strings.Contains(text, "--volume-slots 1") {
		t.Error(text)
	}
}

// The sandboxes of a snapshot that was made with --volume have its volumes, even if the request does
// not name them or comes from a client of forkd 0.5. Nothing else is left of the command.
func TestSnapshotWithVolumes(t *testing.T) {
	rig := apirig.Start(t, apirig.Options{Guest: vmfake.Guest{All: &vmfake.VMMs{}}})
	t.Setenv(urlEnv, rig.URL)
	t.Setenv(tokenEnv, apirig.Token)
	run := func(want int, args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		args = append([]string{"snapshot", "--tag", "py", "--kernel", rig.Parent.Kernel, "--rootfs", rig.Parent.Rootfs,
			"--mem-size-mib", "64"}, args...)
		if code := Main(args, Stdio{In: strings.NewReader(""), Out: &out, Err: &errs}); code != want {
			t.Fatalf("%v: exit code %d, %s", args, code, errs.String())
		}
		return out.String() + errs.String()
	}
	for _, name := range []string{"cache", "models"} {
		if _, err := rig.CreateVolume(t.Context(), client.VolumeRequest{Name: name, SizeMiB: 16}); err != nil {
			t.Fatal(err)
		}
	}
	left := func(want string) {
		t.Helper()
		list, err := rig.Snapshots(t.Context())
		boxes, failed := rig.Sandboxes(t.Context())
		tags := make([]string, len(list))
		for i, s := range list {
			tags[i] = s.Tag
		}
		if err != nil || failed != nil || strings.Join(tags, " ") != want || len(boxes) != 0 {
			t.Errorf("snapshots %v, %d sandboxes, %v, %v; want %q and none", tags, len(boxes), err, failed, want)
		}
	}
	text := run(2, "--volume", "/var/lib/forkd/vol.img:/opt/cache")
	if !strings.Contains(text, "forkd volume create NAME") {
		t.Errorf("a file: %s", text)
	}
	run(2, "--volume", "cache")
	run(1, "--volume", "none:/opt/cache")
	left("")
	text = run(0, "--volume", "cache:/opt/cache:rw", "--volume", "models:/models:ro")
	if !strings.HasPrefix(text, "py\n") {
		t.Errorf("it prints %s", text)
	}
	left("py")
	made, err := rig.Fork(t.Context(), client.ForkRequest{SnapshotTag: "py", N: 2})
	if err != nil {
		t.Fatal(err)
	}
	want := []client.VolumeMount{{Name: "cache", Path: "/opt/cache", Mode: "copy"},
		{Name: "models", Path: "/models", Mode: "ro"}}
	for _, s := range made.Sandboxes {
		if !slices.Equal(s.Volumes, want) {
			t.Errorf("%s has the volumes %v, want %v", s.ID, s.Volumes, want)
		}
	}
}
