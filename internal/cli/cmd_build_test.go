package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// A build shows the daemon's steps for the parent as they happen.
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

// A recipe with more memory than the daemon's host has is refused before anything is built.
func TestABuildChecksMemoryFirst(t *testing.T) {
	rig := apirig.Start(t, apirig.Options{})
	v, err := rig.Client.Version(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("FORKD_CACHE", "/dev/null/nothing") // prevents any build
	recipe := &image.Recipe{Name: "big", MemoryMiB: int(v.HostMemoryMiB) + 1}
	_, err = build(t.Context(), rig.Client, recipe, buildOptions{tag: "big"}, io.Discard)
	want := fmt.Sprintf("memory_mib: %d: the daemon's host has %d MiB", recipe.MemoryMiB, v.HostMemoryMiB)
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

// If the daemon's host cannot run VMs, nothing is built, and forkd doctor on any host shows the
// reason.
func TestABuildAsksForKVMFirst(t *testing.T) {
	const why = "no such device"
	rig := apirig.Start(t, apirig.Options{NoKVM: errors.New(why)})
	t.Setenv("FORKD_CACHE", "/dev/null/nothing") // prevents any build
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
