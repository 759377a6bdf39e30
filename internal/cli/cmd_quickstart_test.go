package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/doctor"
)

// The command quickstart uses an existing snapshot, gets the answer of each fork, removes the
// forks, and can be run again.
func TestQuickstart(t *testing.T) {
	rig := apirig.Start(t, apirig.Options{Agent: agentHere})
	rig.Parent.Tag = quickRecipe
	if _, err := rig.Bake(t.Context(), rig.Parent); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FORKD_CACHE", "/dev/null/nothing") // prevents any build
	for range 2 {
		q := quick{Snapshot: quickRecipe, Forks: 2}
		if err := q.fork(t.Context(), rig.Client, "sum(range(6))"); err != nil || q.Answer != "15" {
			t.Errorf("%+v, %v", q, err)
		}
	}
	q := quick{Snapshot: quickRecipe, Forks: 1}
	if err := q.fork(t.Context(), rig.Client, "import no_such_module"); err == nil ||
		!strings.Contains(err.Error(), "no_such_module") || !strings.Contains(err.Error(), "forkd rmi "+quickRecipe) {
		t.Errorf("an error in the code: %v", err)
	}
	if list, err := rig.Sandboxes(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("left: %+v, %v", list, err)
	}
	if err := rig.DeleteSnapshot(t.Context(), quickRecipe, client.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	code, _, errs := run05(t, rig, "quickstart", "-n", "1")
	if code != 1 || !strings.Contains(errs, "build the snapshot "+quickRecipe+": ") {
		t.Errorf("without a snapshot and a cache: %d, %s", code, errs)
	}
	code, _, errs = run05(t, rig, "quickstart", "-n", "0")
	if code != exitUsage || !strings.Contains(errs, "at least 1") {
		t.Errorf("-n 0: %d, %s", code, errs)
	}
}

// If no daemon answers elsewhere, failed checks of this host prevent a first fork.
func TestWhatIsMissing(t *testing.T) {
	kvm := doctor.Finding{Check: "/dev/kvm", Verdict: doctor.Fail, Detail: "none"}
	space := doctor.Finding{Check: "disk space", Verdict: doctor.Fail, Detail: "full"}
	slow := doctor.Finding{Check: "swap", Verdict: doctor.Warn}
	answers := doctor.Finding{Check: doctor.CheckDaemon, Verdict: doctor.Pass}
	silent := doctor.Finding{Check: doctor.CheckDaemon, Verdict: doctor.Warn}
	refused := doctor.Finding{Check: doctor.CheckDaemon, Verdict: doctor.Fail, Detail: "401"}
	for _, c := range []struct {
		findings []doctor.Finding
		missing  string
		reached  bool
	}{
		{[]doctor.Finding{kvm, space, slow, answers}, "", true},
		{[]doctor.Finding{kvm, space, slow, silent}, "/dev/kvm disk space", false},
		{[]doctor.Finding{slow, silent, {Check: "/dev/kvm", Verdict: doctor.Pass}}, "", false},
		{[]doctor.Finding{{Check: "/dev/kvm", Verdict: doctor.Pass}, refused}, "daemon", false},
	} {
		missing, reached := missingFor(c.findings)
		var names []string
		for _, f := range missing {
			names = append(names, f.Check)
		}
		if got := strings.Join(names, " "); got != c.missing || reached != c.reached {
			t.Errorf("%+v: %q, %v, want %q, %v", c.findings, got, reached, c.missing, c.reached)
		}
	}
}

// If a daemon exits at once, the error contains its output.
func TestADaemonThatEnds(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("FORKD_CACHE", filepath.Join(dir, "cache"))
	program := filepath.Join(dir, "forkd")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho \"$1: no room\" >&2\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	err := startDaemon(t.Context(), program, "unix://"+filepath.Join(dir, "sock"))
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "daemon: no room") {
		t.Errorf("%v", err)
	}
}

// `forkd parent build IMAGE` builds the image. With -o, it only writes the image's root file
// system.
func TestParentBuild(t *testing.T) {
	rig := apirig.Start(t, apirig.Options{})
	if _, err := rig.Bake(t.Context(), rig.Parent); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FORKD_CACHE", "/dev/null/nothing") // prevents any build
	there := filepath.Join(t.TempDir(), "there.ext4")
	if err := os.WriteFile(there, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"a.b\": exists":      {"--tag", rig.Parent.Tag},
		"by a Dockerfile":    {"--extra", "git"},
		"more than 0":        {"--size-mib", "-1"},
		"it exists":          {"-o", there},
		"get guest kernel":   {"-o", there + ".new", "--size-mib", "1536"}, // the build fails in its first part
		"too many arguments": {"one-too-many"},
	} {
		code, _, errs := run05(t, rig, append([]string{"parent", "build", "python:3.12-slim"}, args...)...)
		if code == 0 || !strings.Contains(errs, want) {
			t.Errorf("%v: %d, %s; want %q", args, code, errs, want)
		}
	}
	if code, out, _ := run05(t, rig, "parent"); code != 0 || !strings.Contains(out, "forkd parent [command]") {
		t.Errorf("forkd parent: %d, %s", code, out)
	}
}

// A copy of a file with holes is equal to the file.
func TestCopySparse(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	text := append(make([]byte, 200<<10), "text"...)
	text = append(text, make([]byte, 70<<10)...)
	if err := os.WriteFile(from, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := copySparse(to, from); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, text) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if err := copySparse(to, from); err == nil {
		t.Error("a file was overwritten")
	}
}
