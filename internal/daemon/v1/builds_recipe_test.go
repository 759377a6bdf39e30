package v1_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/proto/vm"
)

// recipeOf returns a request for a recipe whose machine boots from the files of the rig's parent.
func recipeOf(r *apirig.Rig, text string) client.BuildRequest {
	return client.BuildRequest{Tag: "made", Recipe: text,
		Boot: &client.BuildBoot{Kernel: r.Parent.Kernel, Initrd: r.Parent.Initrd, Rootfs: r.Parent.Rootfs,
			Env: map[string]string{"BASE": "b", "BOTH": "b"}}}
}

// A recipe's files, variables, network, limits and strictness reach the steps and the result. A
// second, identical build finds every step. If a command changes, this command and all later
// commands run again.
func TestARecipeIsBuiltInSteps(t *testing.T) {
	r := start(t, apirig.Options{Tokens: []auth.Token{{Name: "team", Scope: auth.Run, Prefix: "team-a/"}}})
	dir, err := os.MkdirTemp("/var/tmp", "fkr") // a recipe has no files below /tmp
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	recipe := func(last, rest string) string {
		return fmt.Sprintf(`name: made
base: debian:bookworm
files:
  - {source: src, target: %[1]s/dst}
  - {source: src/a.sh, target: %[1]s/one/b, mode: "0604"}
env: {BOTH: r}
warmup:
  start: echo $$ > %[1]s/pid; exec sleep 4321
  probe: test -s %[1]s/pid
  commands:
    - echo first >> %[1]s/log
    - echo %[2]s | tee -a %[1]s/log
%[3]s`, dir, last, rest)
	}
	files := map[string]string{"src/a.sh": "a", "src/sub/c": "c", "src/l": "link:a.sh", "unused": "1"}
	log := func() string {
		text, err := os.ReadFile(filepath.Join(dir, "log"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(strings.Fields(string(text)), " ")
	}
	const rest = "unique: strict\nnetwork: {allow: [pypi.org]}\nlimits: {cpus: 0.5}\nmemory_mib: 64\nvcpus: 2\nvolume_slots: 3\n"
	req := recipeOf(r, recipe("last", rest))
	req.ReadyTimeoutSecs = 100
	res, out, err := built(t, r.Client, req, files)
	if err != nil {
		t.Fatal(err, "\n", out)
	}
	if res.Run != 8 || res.Cached != 0 || log() != "first last" {
		t.Fatalf("%+v, %q\n%s", res, log(), out)
	}
	hasLines(t, out, "5: last")
	modes := map[string]os.FileMode{"dst/a.sh": 0o644, "one/b": 0o604, "dst/sub/c": 0o644, "dst/sub": 0o755}
	for name, want := range modes {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if link, err := os.Readlink(filepath.Join(dir, "dst/l")); err != nil || link != "a.sh" {
		t.Errorf("the link leads to %q, %v", link, err)
	}
	check := func(want snapshot.Guest) {
		t.Helper()
		d, err := r.Store.Detail("made")
		if err != nil {
			t.Fatal(err)
		}
		got := snapshot.Guest{Network: d.Guest.Network, Limits: d.Guest.Limits, Strict: d.Guest.Strict,
			Defaults: d.Guest.Defaults}
		want.Env = map[string]string{"BASE": "b", "BOTH": "r"}
		if jsonOf(t, got) != jsonOf(t, want) || d.DiskOnly || d.Machine.VCPUs != 2 || d.Machine.MemoryBytes != 64<<20 ||
			d.Machine.VolumeSlots != 3 {
			t.Errorf("the result is %s of %+v, want %s", jsonOf(t, got), d, jsonOf(t, want))
		}
	}
	check(snapshot.Guest{Network: &snapshot.Network{Mode: "allow", Allow: []string{"pypi.org"}},
		Limits: vm.Limits{CPUs: 0.5}, Strict: true})
	files["unused"] = "2"
	if res, out, err = built(t, r.Client, req, files); err != nil || res.Run != 0 || res.Cached != 8 {
		t.Errorf("the same again: %+v, %v\n%s", res, err, out)
	}
	req.Recipe = recipe("other", rest)
	if _, _, err = built(t, r.Client, req, files); err == nil || !strings.Contains(err.Error(), "exists") {
		t.Errorf("a changed recipe took the place of a snapshot: %v", err)
	}
	req.Replace, req.Network, req.Limits = true, &client.Network{Mode: "none"}, &client.Limits{CPUWeight: 7}
	req.Recipe = recipe("last", rest)
	if res, out, err = built(t, r.Client, req, files); err != nil || res.Run != 5 || res.Cached != 3 {
		t.Errorf("with another network: %+v, %v\n%s", res, err, out)
	}
	check(snapshot.Guest{Network: &snapshot.Network{Mode: "none"}, Limits: vm.Limits{CPUWeight: 7}, Strict: true})
	req.Network, req.Limits, req.Recipe = nil, nil, recipe("other", rest)
	if res, out, err = built(t, r.Client, req, files); err != nil || res.Run != 3 || res.Cached != 5 ||
		!strings.HasSuffix(log(), " other") {
		t.Errorf("with another command: %+v, %v, %q\n%s", res, err, log(), out)
	}
	req.Recipe = recipe("other", "memory_mib: 64\nvcpus: 2\nvolume_slots: 3\n")
	// The warm-up has no network, as in the build whose network mode is "none".
	if res, out, err = built(t, r.Client, req, files); err != nil || res.Run != 3 {
		t.Errorf("without a network: %+v, %v\n%s", res, err, out)
	}
	check(snapshot.Guest{Network: &snapshot.Network{Mode: "public"}})
	next := client.BuildRequest{Tag: "next", Dockerfile: "FROM made\nRUN true\n"}
	if _, out, err = built(t, r.Client, next, nil); err != nil {
		t.Errorf("FROM the result: %v\n%s", err, out)
	}
	if d, err := r.Client.Snapshot(t.Context(), "made"); err != nil || !d.Built {
		t.Errorf("it is no result of a build: %+v, %v", d, err)
	}
	other, err := client.New(r.URL, r.Tokens["team"])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Snapshot(t.Context(), "made"); err != nil {
		t.Errorf("a recipe's result is not for all: %v", err)
	}
	if _, err := other.Snapshot(t.Context(), "next"); !client.IsNotFound(err) {
		t.Errorf("a Dockerfile's result is for all: %v", err)
	}
}

// If a recipe has no network, its steps and its code for the interpreter run in sandboxes without a
// network.
func TestTheWarmUpOfARecipeHasNoNetwork(t *testing.T) {
	r := start(t, apirig.Options{})
	mark := filepath.Join(t.TempDir(), "mark")
	req := recipeOf(r, fmt.Sprintf("name: made\nbase: debian:bookworm\nwarmup:\n  commands: ['touch %[1]s; while [ -e %[1]s ]; do "+
		"sleep 0.1; done']\n  python: print(6 * 7)\n", mark))
	ended := make(chan error, 1)
	go func() {
		_, out, err := built(t, r.Client, req, nil)
		if err == nil && !strings.Contains(out, "2: 42") {
			err = fmt.Errorf("the code said nothing: %s", out)
		}
		ended <- err
	}()
	for {
		if _, err := os.Stat(mark); err == nil {
			break
		}
		select {
		case err := <-ended:
			t.Fatalf("the build has ended: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	list, err := r.Sandboxes(t.Context())
	if err != nil || len(list) != 1 || list[0].Network != "none" {
		t.Errorf("the sandboxes of the build: %+v, %v", list, err)
	}
	if err := os.Remove(mark); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// The error for a wrong recipe or request names the field. The error for a failed step names the
// step.
func TestErrorsOfRecipes(t *testing.T) {
	r := start(t, apirig.Options{})
	const head = "name: made\nbase: debian:bookworm\n"
	for _, c := range []struct {
		want   string
		change func(*client.BuildRequest)
	}{
		{`recipe: name: "" must be 1 to 63`, func(q *client.BuildRequest) { q.Recipe = "base: debian:bookworm\n" }},
		{`recipe: line 3: unknown field "colour"`, func(q *client.BuildRequest) { q.Recipe = head + "colour: red\n" }},
		{`recipe: files[0]: source: "x": the build context has no such file`, func(q *client.BuildRequest) {
			q.Recipe = head + "files: [{source: x, target: /x}]\n"
		}},
		{"recipe: memory_mib: 1048576: the daemon's host has", func(q *client.BuildRequest) {
			q.Recipe = head + "memory_mib: 1048576\n"
		}},
		{`boot.rootfs: "r": want the absolute path`, func(q *client.BuildRequest) { q.Boot.Rootfs = "r" }},
		{"boot.kernel: stat /no: ", func(q *client.BuildRequest) { q.Boot.Kernel = "/no" }},
		{"boot.rootfs: /dev/null: want a regular file", func(q *client.BuildRequest) { q.Boot.Rootfs = "/dev/null" }},
		{"recipe: it says itself what vcpus", func(q *client.BuildRequest) { q.VCPUs = 2 }},
		{"recipe: it takes no secrets, target and args", func(q *client.BuildRequest) { q.Target = "x" }},
		{"network.mode: ", func(q *client.BuildRequest) { q.Network = &client.Network{Mode: "all"} }},
		{"network.secrets: a snapshot keeps none", func(q *client.BuildRequest) {
			q.Network = &client.Network{Mode: "public",
				Secrets: []client.NetworkSecret{{Host: "a.example", Header: "x", Value: "y"}}}
		}},
		{"limits.memory_mib: ", func(q *client.BuildRequest) { q.Limits = &client.Limits{MemoryMiB: 1} }},
		{"ready_timeout_secs: ", func(q *client.BuildRequest) { q.ReadyTimeoutSecs = -1 }},
		{"[2/5] warmup.commands[0] echo why; exit 3: exit status 3", func(q *client.BuildRequest) {
			q.Recipe = head + "warmup: {commands: [echo why; exit 3, echo never]}\n"
		}},
		{"[2/4] warmup.python 1/0: ZeroDivisionError", func(q *client.BuildRequest) {
			q.Recipe = head + "warmup: {python: 1/0}\n"
		}},
		{"warmup.commands[0] sleep 100: not done after 100ms: raise timeout_secs", func(q *client.BuildRequest) {
			q.Recipe = head + "warmup: {commands: [sleep 100], timeout_secs: 0.1}\n"
		}},
	} {
		req := recipeOf(r, head)
		c.change(&req)
		_, out, err := built(t, r.Client, req, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q\n%s", err, c.want, out)
		}
		if strings.Contains(out, "never") {
			t.Errorf("a step after the failed one: %s", out)
		}
	}
	if _, err := r.Snapshot(t.Context(), "made"); !client.IsNotFound(err) {
		t.Errorf("there is a result: %v", err)
	}
	if list, err := r.Sandboxes(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("sandboxes are left: %+v, %v", list, err)
	}
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
