package cli

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

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

// The list of volumes shows the writer of each volume, and the list of snapshots shows the volume
// slots of each snapshot. The error about a volume that does not exist mentions a directory of the
// same name.
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
	run(0, "volume", "create", "more", "--size", "16m")
	if text := run(0, "volume", "attach", "more", id+":/more"); text != id+"\n" {
		t.Errorf("attach: %q", text)
	}
	if f := row(run(0, "volume", "ls"), "more"); f[5] != id {
		t.Errorf("with the writer %s: %q", id, f)
	}
	if text := run(1, "volume", "detach", "none", id); !strings.Contains(text, "has not mounted it") {
		t.Error(text)
	}
	if text := run(0, "volume", "detach", "more", id); text != "more\n" {
		t.Errorf("detach: %q", text)
	}
	if text := run(1, "volume", "detach", "more", id); !strings.Contains(text, "has not mounted it") {
		t.Error(text)
	}
	run(0, "volume", "attach", "more", id+":/more:ro")
	if f := row(run(0, "volume", "ls"), "more"); f[5] != "-" {
		t.Errorf("attached read-only: %q", f)
	}
	if text := run(2, "volume", "attach", "more", id); !strings.Contains(text, "ID:/PATH") {
		t.Error(text)
	}
	bare, _, _ := strings.Cut(run(0, "fork", "none"), "\n")
	if text := run(1, "volume", "attach", "more", bare+":/more"); !strings.Contains(text, "--volume-slots 1") {
		t.Error(text)
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

// A directory with the mode ro is copied once, into a volume that all sandboxes mount read-only.
// The volume and the sandbox that receives the files are removed, even if a step fails.
func TestSharedDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	const filler = "fork 1 [{slots.dir-R /src }] none; "
	steps := []string{"POST volumes; GET volumes; " + filler, "PUT sb-1/archive; ", "POST sb-1/exec; ", "DELETE sb-1; ",
		"fork 3 [{data /data ro} {slots.dir-R /src ro}]; "}
	const end = "DELETE slots.dir-R; "
	for fail, want := range map[string]string{
		"":                 strings.Join(steps, "") + end,
		"PUT sb-1/archive": steps[0] + steps[1] + steps[3] + end,
		"POST sb-1/exec":   steps[0] + steps[1] + steps[2] + steps[3] + end,
		"fork 1":           steps[0] + end,
		"fork 3":           strings.Join(steps, "") + end,
	} {
		done := sharing(t, fail)
		var out, errs bytes.Buffer
		code := Main([]string{"fork", "slots", "-n", "3", "-v", dir + ":/src/:ro", "-v", "data:/data:ro"},
			Stdio{In: strings.NewReader(""), Out: &out, Err: &errs})
		if (code == 0) != (fail == "") || *done != want {
			t.Errorf("%q fails: code %d, %s%s\nwant %s", fail, code, errs.String(), *done, want)
		}
	}
}

// sharing starts a daemon that only records requests. A request gets an error if its recorded text
// begins with fail, and fail is not empty.
func sharing(t *testing.T, fail string) (done *string) {
	done = new(string)
	random := regexp.MustCompile(`dir-[a-z0-9]{26}`)
	daemon := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		what := r.Method + " " + strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/v1/sandboxes/"), "/v1/")
		what = strings.Replace(what, " volumes/", " ", 1)
		var answer any
		switch r.URL.Path {
		case "/v1/volumes":
			var req client.VolumeRequest
			answer = []client.Volume{}
			if r.Method == http.MethodPost {
				if err := json.NewDecoder(r.Body).Decode(&req); err != nil || req.SizeMiB != 81 {
					t.Errorf("a volume of %d MiB, %v", req.SizeMiB, err)
				}
				answer = client.Volume{Name: req.Name}
			}
		case "/v1/forks":
			var req client.ForkRequest
			if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
				t.Error(err)
			}
			what = fmt.Sprintf("fork %d %v", req.N, req.Volumes)
			if req.Network != nil {
				what += " " + req.Network.Mode
			}
			answer = client.Forked{Sandboxes: []client.Sandbox{{ID: "sb-1"}, {ID: "sb-2"}, {ID: "sb-3"}}[:req.N]}
		case "/v1/sandboxes/sb-1/exec":
			answer = map[string]client.ExecEnd{"end": {}}
		}
		*done += random.ReplaceAllString(what, "dir-R") + "; "
		w.Header().Set("Content-Type", "application/json")
		if fail != "" && strings.HasPrefix(what, fail) {
			w.WriteHeader(http.StatusConflict)
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(daemon.Close)
	t.Setenv(urlEnv, daemon.URL)
	t.Setenv(tokenEnv, "")
	return done
}

// Only volumes of commands that were killed long ago are removed.
func TestStaleSharedVolumes(t *testing.T) {
	old, now := time.Now().Add(-2*sharedStale).Unix(), time.Now().Unix()
	var deleted []string
	daemon := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			deleted = append(deleted, path.Base(r.URL.Path))
			w.WriteHeader(http.StatusNoContent)
			return
		}
		if got := r.URL.Query()["label"]; !slices.Equal(got, []string{sharedLabel}) {
			t.Errorf("it lists volumes with the labels %q", got)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode([]client.Volume{{Name: "killed", CreatedAt: old}, {Name: "new", CreatedAt: now},
			{Name: "filling", CreatedAt: old, Writer: "sb-1"}})
	}))
	defer daemon.Close()
	cl, err := client.New(daemon.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := removeStale(t.Context(), cl); err != nil || !slices.Equal(deleted, []string{"killed"}) {
		t.Errorf("removed %q, %v: want killed", deleted, err)
	}
}

// The volume of a directory has room for its files, their inodes and names, and a journal.
func TestSharedSize(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range 1000 {
		if err := w.WriteHeader(&tar.Header{Name: strconv.Itoa(i), Size: 1, Mode: 0o600}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	// 1,000 files of three blocks each are 11.7 MiB.
	if got, err := sharedMiB(&b); err != nil || got != 94 {
		t.Errorf("%d MiB, %v: want 94", got, err)
	}
}

// The sandboxes of a snapshot that was made with --volume have its volumes, even if the request does
// not name them or comes from a client of forkd 0.5. The command leaves nothing else behind.
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
	// A killed command leaves its parent and a sandbox. The next command removes them.
	killed := client.BakeRequest{Tag: "py" + bootSuffix, Kernel: rig.Parent.Kernel, Rootfs: rig.Parent.Rootfs,
		MemSizeMiB: 64}
	if _, err := rig.Bake(t.Context(), killed); err != nil {
		t.Fatal(err)
	}
	if _, err := rig.Fork(t.Context(), client.ForkRequest{SnapshotTag: killed.Tag, N: 1}); err != nil {
		t.Fatal(err)
	}
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
