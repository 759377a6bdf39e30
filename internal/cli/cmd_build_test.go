package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/build/image"
	"github.com/forkd/forkd/internal/doctor"
	"github.com/forkd/forkd/internal/host/agentclient"
)

// log is an output that can be read while it is written.
type log struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// A build shows the daemon's steps as they happen.
func TestABuildShowsTheStepsOfItsBake(t *testing.T) {
	rig := apirig.Start(t, apirig.Options{})
	var out log
	commands := 0
	rig.VMs.Exec = func(context.Context) agentclient.ExecResult {
		commands++
		for !strings.Contains(out.String(), []string{"", "run warm-up command 1", "run warm-up command 2"}[commands]) &&
			t.Context().Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
		return agentclient.ExecResult{Outcome: agentclient.Exited}
	}
	rig.Parent.Warmup = client.Warmup{Commands: []string{"a", "b"}}
	st := newStatus(&out)
	b, err := bakeInSteps(t.Context(), rig.Client, rig.Parent, st)
	st.end()
	if err != nil || b.Status != "ready" || b.Step != "" || commands != 2 {
		t.Errorf("%+v, %v, %d commands", b, err, commands)
	}
	if text := out.String(); !strings.HasPrefix(text,
		"forkd: boot and warm up the parent\nforkd: parent: run warm-up command 1\n") {
		t.Errorf("shown: %s", text)
	}
}

// A recipe that needs more memory than the daemon's host has is refused before anything is built.
func TestABuildChecksMemoryFirst(t *testing.T) {
	rig := apirig.Start(t, apirig.Options{})
	v, err := rig.Client.Version(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("FORKD_CACHE", "/dev/null/nothing") // makes every build fail
	recipe := &image.Recipe{Name: "big", MemoryMiB: int(v.HostMemoryMiB) + 1}
	_, err = build(t.Context(), rig.Client, recipe, buildOptions{tag: "big"}, io.Discard)
	want := fmt.Sprintf("memory_mib: %d: the daemon's host has %d MiB", recipe.MemoryMiB, v.HostMemoryMiB)
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

// If the daemon's host cannot run VMs, nothing is built. The command forkd doctor shows the reason,
// on any host.
func TestABuildAsksForKVMFirst(t *testing.T) {
	const why = "no such device"
	rig := apirig.Start(t, apirig.Options{NoKVM: errors.New(why)})
	t.Setenv("FORKD_CACHE", "/dev/null/nothing") // makes every build fail
	_, err := build(t.Context(), rig.Client, &image.Recipe{Name: "small"}, buildOptions{tag: "small"},
		io.Discard)
	if err == nil || !strings.Contains(err.Error(), "cannot run VMs: "+why+" (run 'forkd doctor' there;") {
		t.Errorf("build: %v", err)
	}
	t.Setenv(tokenEnv, apirig.Token)
	findings := doctorHost(rig.URL, &tokenFlags{}).Diagnose(t.Context())
	i := slices.IndexFunc(findings, func(f doctor.Finding) bool { return f.Check == "daemon" })
	if i < 0 || findings[i].Verdict != doctor.Fail || !strings.Contains(findings[i].Detail, "cannot run VMs: "+why) {
		t.Errorf("doctor: %+v", findings)
	}
}

// A recipe is sent with its files and built in steps. If the same recipe is built again, the
// snapshots of all steps are found. A changed recipe does not replace a snapshot. If the daemon
// refuses an image, the build ends at once, even if it waits for a registry that does not answer.
func TestARefusalEndsTheStream(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		http.Error(w, `{"error": "image: refused"}`, http.StatusBadRequest)
	}))
	defer server.Close()
	cl, err := client.New(server.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- fillDisk(t.Context(), cl, "/kernel", image.Disk{Path: filepath.Join(t.TempDir(), "disk"), MiB: 64,
			Stream: func(ctx context.Context, _ io.Writer) error {
				<-ctx.Done()
				return ctx.Err()
			}})
	}()
	select {
	case err := <-ended:
		if !client.IsStatus(err, http.StatusBadRequest) {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the build waits for its registry")
	}
}

func TestARecipeIsSentWithItsFiles(t *testing.T) {
	rig := apirig.Start(t, apirig.Options{Agent: agentHere})
	target, err := os.MkdirTemp("/var/tmp", "fkc") // a recipe has no files below /tmp
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(target) })
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), mode)); err != nil {
			t.Fatal(err)
		}
	}
	write("image/rootfs.ext4", strings.Repeat("r", 4096), 0o600)
	write("kernel", "k", 0o600)
	write("src/tool", "#!/bin/sh\n", 0o750)
	write("src/data", "d", 0o600)
	if err := os.Symlink("data", filepath.Join(dir, "src/link")); err != nil {
		t.Fatal(err)
	}
	recipe := "name: sent\nbase: debian:bookworm\nfiles:\n  - {source: src, target: @/all}\n" +
		"  - {source: src/link, target: @/copy}\nwarmup: {commands: [echo said]}\n"
	send := func(more string) (b built, out string, err error) {
		t.Helper()
		write("recipe.yaml", strings.ReplaceAll(recipe+more, "@", target), 0o600)
		r, err := loadRecipe(dir)
		if err != nil {
			t.Fatal(err)
		}
		var said bytes.Buffer
		err = b.steps(t.Context(), rig.Client, buildOptions{tag: "sent"}, r, &image.Image{Dir: filepath.Join(dir, "image")},
			&image.KernelFiles{VMLinux: filepath.Join(dir, "kernel"), Initrd: filepath.Join(dir, "kernel")}, &said)
		return b, said.String(), err
	}
	b, out, err := send("")
	took := b.BootMS > 0 && b.WarmupMS > 0
	if err != nil || b.Run != 6 || b.Tag != "sent" || !took || !strings.Contains(out, " said\n") {
		t.Fatalf("%+v, %v\n%s", b, err, out)
	}
	for name, want := range map[string]string{"all/tool": "-rwxr-xr-x", "all/data": "-rw-r--r--", "all/link": "-rw-r--r--",
		"copy": "-rw-r--r--"} {
		if info, err := os.Lstat(filepath.Join(target, name)); err != nil || info.Mode().String() != want {
			t.Errorf("%s: %v, %v, want %s", name, info, err, want)
		}
	}
	if b, out, err = send(""); err != nil || b.Run != 0 || b.Cached != 6 {
		t.Errorf("the same again: %+v, %v\n%s", b, err, out)
	}
	if _, _, err = send("limits: {cpus: 0.5}\n"); !client.IsStatus(err, http.StatusConflict) {
		t.Errorf("a changed recipe: %v", err)
	}
}
