// Command run shows that the torture finds defects. It builds the product with one defect at a time
// and runs the torture with that product. It uses this host if KVM works here, and otherwise the
// emulated host. scripts/mutants calls it after scripts/build and command prepare.
//
// First it runs both kinds of torture without a defect, with the same seed. They must pass. If they
// failed, a failure with a defect would show nothing. A defect counts as found if the torture test
// itself fails: a build that fails, a host that is lost or a time limit of go test does not count.
// The output of each run is in out/mutants.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/forkd/forkd/internal/cachedir"
	"github.com/forkd/forkd/internal/vmm/kvm"
	"github.com/forkd/forkd/internal/vmtest"
	"github.com/forkd/forkd/test/mutants"
)

// runLimit bounds one run of the torture.
const runLimit = 40 * time.Minute

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	r := &runner{}
	only := flag.String("only", "", "names of mutants, separated by commas; default: all")
	flag.IntVar(&r.branches[0], "n", 60, "how many branches without a daemon")
	flag.IntVar(&r.branches[1], "daemon.n", 22, "how many branches through a daemon")
	flag.Uint64Var(&r.seed, "seed", 1, "of the choices")
	flag.Parse()
	if err := r.run(ctx, *only); err != nil {
		fmt.Fprintf(os.Stderr, "mutants: %v\n", err)
		os.Exit(1)
	}
}

// runner builds mutants and runs the torture.
type runner struct {
	branches [2]int // without a daemon, and through a daemon
	seed     uint64
	root     string // of the module
	dir      string // for the built programs; an emulated host can read it
	exec     []string
	assets   vmtest.Assets
}

func (r *runner) run(ctx context.Context, only string) error {
	chosen, err := choose(only)
	if err != nil {
		return err
	}
	if err := r.prepare(); err != nil {
		return err
	}
	defer os.RemoveAll(r.dir)
	for _, kind := range []string{mutants.VMM, mutants.Daemon} {
		if !slices.ContainsFunc(chosen, func(m mutants.Mutant) bool { return m.Run == kind }) {
			continue
		}
		found, err := r.try(ctx, mutants.Mutant{Name: "none-" + kind, Run: kind})
		if err == nil && found != "" {
			err = fmt.Errorf("the torture (%s) fails without a defect: %s", kind, found)
		}
		if err != nil {
			return err
		}
	}
	var survived []string
	var failed error // if one mutant cannot be tried, the other mutants are still tried
	n := 0
	for _, m := range chosen {
		found, err := r.try(ctx, m)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			fmt.Printf("%-24s not tried: %v\n", m.Name, err)
			failed = errors.Join(failed, err)
		case found == "":
			survived = append(survived, m.Name)
		default:
			n++
		}
	}
	fmt.Printf("mutants: %d of %d were found\n", n, len(chosen))
	if len(survived) > 0 {
		failed = errors.Join(failed, fmt.Errorf("the torture did not find %s", strings.Join(survived, ", ")))
	}
	return failed
}

// choose returns the mutants with the given names, or all.
func choose(only string) ([]mutants.Mutant, error) {
	all, err := mutants.All()
	if err != nil || only == "" {
		return all, err
	}
	var chosen []mutants.Mutant
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(all, func(m mutants.Mutant) bool { return m.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("no mutant is called %q", name)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

func (r *runner) prepare() (err error) {
	if r.root, err = os.Getwd(); err != nil {
		return err
	}
	cache, err := cachedir.Dir()
	if err != nil {
		return err
	}
	p, err := os.ReadFile(filepath.Join(cache, vmtest.AssetsFile))
	if err != nil {
		return fmt.Errorf("run scripts/mutants, which makes the files that VM tests need: %w", err)
	}
	if err := json.Unmarshal(p, &r.assets); err != nil {
		return fmt.Errorf("parse %s: %w", vmtest.AssetsFile, err)
	}
	if r.dir, err = os.MkdirTemp(filepath.Dir(filepath.Join(cache, vmtest.AssetsFile)), "mutants"); err != nil {
		return err
	}
	if err := kvm.Probe(); err != nil {
		fmt.Printf("mutants: in the emulated host: %v\n", err)
		r.exec = []string{"-exec", filepath.Join(r.root, "scripts/machine-exec")}
	}
	return errors.Join(os.Chmod(r.dir, 0o755), os.MkdirAll("out/mutants", 0o755))
}

// try builds a mutant, runs its torture and prints a line. It returns what the torture has found, or
// "" if the torture passed.
func (r *runner) try(ctx context.Context, m mutants.Mutant) (found string, err error) {
	start := time.Now()
	dir := filepath.Join(r.dir, m.Name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	overlay, err := r.build(ctx, m, dir)
	if err != nil {
		return "", err
	}
	out, failed := r.torture(ctx, m, overlay, filepath.Join(dir, "assets.json"))
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	log := filepath.Join("out/mutants", m.Name+".log")
	if err := os.WriteFile(log, out, 0o644); err != nil {
		return "", err
	}
	found, err = verdict(string(out), failed)
	if err != nil {
		return "", fmt.Errorf("%s: %w; see %s", m.Name, err, log)
	}
	word := "found: " + found
	if found == "" {
		word = "the torture passed"
	}
	fmt.Printf("%-24s %4.0f s, %s branches  %s\n", m.Name, time.Since(start).Seconds(), branchesIn(string(out)), word)
	return found, nil
}

// build builds the programs of a mutant into dir and describes them in dir/assets.json. It returns
// the overlay file, for the test that runs them.
func (r *runner) build(ctx context.Context, m mutants.Mutant, dir string) (overlay string, err error) {
	replaced, err := m.Overlay(r.root, filepath.Join(dir, "tree"))
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	if err := mutants.WriteOverlay(overlay, replaced); err != nil {
		return "", err
	}
	assets := r.assets
	assets.VMM = filepath.Join(dir, "forkd-vmm")
	if err := r.goBuild(ctx, overlay, assets.VMM, "./cmd/forkd-vmm", "GOEXPERIMENT=nogreenteagc"); err != nil {
		return "", err
	}
	if m.Run == mutants.Daemon {
		whole := maps.Clone(replaced)
		whole[filepath.Join(r.root, "internal/embedded/bin/forkd-vmm")] = assets.VMM
		embed := filepath.Join(dir, "embed.json")
		if err := mutants.WriteOverlay(embed, whole); err != nil {
			return "", err
		}
		assets.Forkd = filepath.Join(dir, "forkd")
		if err := r.goBuild(ctx, embed, assets.Forkd, "./cmd/forkd"); err != nil {
			return "", err
		}
	}
	p, err := json.Marshal(assets)
	if err != nil {
		return "", err
	}
	return overlay, os.WriteFile(filepath.Join(dir, "assets.json"), p, 0o644)
}

// goBuild builds a program as scripts/build does.
func (r *runner) goBuild(ctx context.Context, overlay, to, pkg string, env ...string) error {
	build := exec.CommandContext(ctx, "go", "build", "-overlay", overlay, "-trimpath", "-ldflags", "-s -w", "-o", to, pkg)
	build.Env = append(append(os.Environ(), "CGO_ENABLED=0"), env...)
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return nil
}

// torture runs the torture of a mutant until it has found something or has made all its branches.
func (r *runner) torture(ctx context.Context, m mutants.Mutant, overlay, assets string) (out []byte, failed error) {
	pkg, n := "./test/torture", r.branches[0]
	if m.Run == mutants.Daemon {
		pkg, n = "./test/integration", r.branches[1]
	}
	args := append([]string{"test", "-overlay", overlay}, r.exec...)
	args = append(args, "-count=1", "-timeout", runLimit.String(), "-v", "-run", "^TestTorture$", pkg,
		fmt.Sprintf("-torture.n=%d", n), fmt.Sprintf("-torture.seed=%d", r.seed))
	test := exec.CommandContext(ctx, "go", args...)
	test.Cancel = func() error { return test.Process.Signal(os.Interrupt) }
	test.Env = append(os.Environ(), "CGO_ENABLED=0", "FORKD_TEST_KVM=1", "FORKD_TEST_ASSETS="+assets,
		"FORKD_TEST_LIMIT="+(runLimit+time.Minute).String())
	return test.CombinedOutput()
}

var branchesLine = regexp.MustCompile(`(?m)_test\.go:.* ([0-9]+) branches \(live `)

// branchesIn returns how many branches a torture test has made, according to its output, or "?".
func branchesIn(out string) string {
	if m := branchesLine.FindStringSubmatch(out); m != nil {
		return m[1]
	}
	return "?"
}

// verdict reads the output of a torture test. It returns what the test has found, or "" if the test
// passed. Any other outcome is an error.
func verdict(out string, failed error) (found string, err error) {
	lines := strings.Split(out, "\n")
	has := func(mark string) bool {
		return slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, mark) })
	}
	switch {
	case failed == nil && has("--- PASS: TestTorture "):
		return "", nil
	case failed == nil || !has("--- FAIL: TestTorture ") || has("panic: "):
		return "", fmt.Errorf("the torture has neither passed nor failed: %v", failed)
	}
	for i, l := range lines {
		if strings.HasSuffix(l, "MISMATCH:") && i+1 < len(lines) {
			return "MISMATCH: " + strings.TrimSpace(lines[i+1]), nil
		}
	}
	for _, l := range lines { // the last message of the test, except the counts
		if strings.Contains(l, "_test.go:") && !strings.Contains(l, " branches (live ") {
			found = strings.TrimSpace(l)
		}
	}
	return "no mismatch, but a failure: " + found, nil
}
