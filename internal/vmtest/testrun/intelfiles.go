package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/forkd/forkd/internal/vmtest"
)

// Directories on the disk of an emulated Intel host, which is mounted at /disk. The disk also has
// test programs with their testdata, and the files of the cache that VM tests use.
const (
	resultsDir    = "/results"
	carryInDir    = "/carried"              // a snapshot from another host
	carryOutDir   = resultsDir + "/carried" // a snapshot for another host
	tortureReport = "/disk" + resultsDir + "/torture.json"
)

// short returns the name of a package on the host's disk.
func (p vmPkg) short() string {
	return strings.ReplaceAll(strings.TrimPrefix(p.path, module), "/", "-")
}

// layOut creates the files of the disk in the directory whose path is tree, and returns their size
// in bytes.
func (j intelJob) layOut(ctx context.Context, cache, tree string) (size int64, err error) {
	for _, p := range j.packages {
		dir := filepath.Join(tree, "tests", p.short())
		if err := buildTest(ctx, p.path, dir); err != nil {
			return 0, err
		}
		size += intelPerProgram
	}
	if err := os.Mkdir(filepath.Join(tree, resultsDir), 0o755); err != nil {
		return 0, err
	}
	used, err := linkAssets(cache, filepath.Join(tree, "cache"))
	if err != nil || j.in == "" {
		return size + used, err
	}
	files, err := os.ReadDir(j.in)
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		if f.IsDir() { // a directory of attributes that QEMU keeps for the files
			continue
		}
		more, err := link(filepath.Join(tree, carryInDir, f.Name()), filepath.Join(j.in, f.Name()))
		if err != nil {
			return 0, err
		}
		used += more
	}
	return size + used, nil
}

// script returns the shell script that runs the tests on the host.
func (j intelJob) script(cache string, packages []vmPkg) string {
	var s strings.Builder
	fmt.Fprintf(&s, "export FORKD_TEST_KVM=1 FORKD_CACHE=%s\n", quote(cache))
	fmt.Fprintf(&s, "mkdir -p %[1]s && mount --bind /disk/cache %[1]s\n", quote(cache))
	for _, p := range packages {
		s.WriteString(j.command(p))
	}
	return s.String()
}

// command returns the line of the script that runs the tests of a package. The console shows the
// result of each test as soon as the test ends.
func (j intelJob) command(p vmPkg) string {
	args := append([]string{"-test.v=test2json", "-test.timeout=" + j.testLimit(), "-test.run=" + p.pattern()}, j.flags...)
	for i := range args {
		args[i] = quote(args[i])
	}
	results := quote("/disk" + resultsDir + "/" + p.short())
	return fmt.Sprintf("cd /disk/tests/%s && { ./test %s 2>&1; echo $? >%s.status; } | tee %[3]s.log | "+
		"awk '/--- (PASS|FAIL|SKIP)|^torture/ { print; fflush() }'\n", quote(p.short()), strings.Join(args, " "), results)
}

func (j intelJob) testLimit() string {
	return min(j.limit, max(intelTestLimit, j.limit-intelLimit)).String()
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// buildTest builds a package's tests as a program in dir, next to its testdata.
func buildTest(ctx context.Context, pkg, dir string) error {
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-o", filepath.Join(dir, "test"), pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the tests of %s: %w\n%s", pkg, err, out)
	}
	testdata := filepath.Join(strings.TrimPrefix(pkg, module), "testdata")
	if _, err := os.Stat(testdata); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return os.CopyFS(filepath.Join(dir, "testdata"), os.DirFS(testdata))
}

// linkAssets puts the files that prepare has created into the tree with the given path. The files
// keep their paths in the cache. The result is their size on disk. linkAssets makes hard links
// instead of copies, because the files are large and are later copied to the host's disk.
func linkAssets(cache, to string) (size int64, err error) {
	description := filepath.Join(cache, vmtest.AssetsFile)
	p, err := os.ReadFile(description)
	if err != nil {
		return 0, fmt.Errorf("%w: run scripts/test, which makes what VM tests need", err)
	}
	a := vmtest.Assets{}
	if err := json.Unmarshal(p, &a); err != nil {
		return 0, fmt.Errorf("parse %s: %w", description, err)
	}
	files := []string{description, a.VMM, a.Forkd, a.Torture}
	for _, k := range []vmtest.Kernel{a.Cloud, a.Minimal} {
		files = append(files, k.VMLinux, k.BzImage, k.Initrd)
	}
	for _, dir := range a.Images {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return 0, err
		}
		for _, e := range entries {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	for _, file := range files {
		name, err := filepath.Rel(cache, file)
		if err != nil || !filepath.IsLocal(name) {
			return 0, fmt.Errorf("%s is not in the cache", file)
		}
		used, err := link(filepath.Join(to, name), file)
		if err != nil {
			return 0, err
		}
		size += used
	}
	return size, nil
}

// link makes a hard link to a file. It returns the number of bytes that the file takes on a disk,
// which is small for a sparse file.
func link(to, from string) (used int64, err error) {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return 0, err
	}
	if err := os.Link(from, to); err != nil {
		return 0, err
	}
	var st syscall.Stat_t
	if err := syscall.Stat(to, &st); err != nil {
		return 0, fmt.Errorf("stat %s: %w", to, err)
	}
	return st.Blocks * 512, nil
}

// report reads the results of all packages' tests from the directory dir, to which a run has
// written them.
func report(ctx context.Context, host string, packages []vmPkg, dir string, out io.Writer) (total counts, err error) {
	for _, p := range packages {
		c, packageErr := reportPackage(ctx, host, p, filepath.Join(dir, p.short()), out)
		total.add(c)
		if packageErr != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", p.path, packageErr))
		}
	}
	if p, readErr := os.ReadFile(filepath.Join(dir, path.Base(tortureReport))); readErr == nil {
		err = errors.Join(err, os.MkdirAll("out", 0o755), os.WriteFile("out/torture-intel.json", p, 0o644))
		fmt.Fprintf(out, "%s\n", p)
	}
	return total, err
}

// reportPackage counts the tests in a package's log. It returns an error if a test was not run or
// did not pass.
func reportPackage(ctx context.Context, host string, p vmPkg, result string, out io.Writer) (counts, error) {
	log := result + ".log"
	if _, err := os.Stat(log); err != nil {
		return counts{}, errors.New("its tests did not begin")
	}
	r := &run{name: host + "." + p.short(), out: out, each: true,
		raw: []string{"sh", "-c", `exec go tool test2json -p "$0" <"$1"`, p.path, log}}
	if _, err := r.do(ctx); err != nil {
		return counts{}, fmt.Errorf("read its tests' output: %w", err)
	}
	status, err := os.ReadFile(result + ".status")
	switch {
	case err != nil:
		return r.total, errors.New("its tests did not end")
	case strings.TrimSpace(string(status)) != "0":
		return r.total, fmt.Errorf("its tests ended with status %s", strings.TrimSpace(string(status)))
	}
	return r.total, p.complete(r.total)
}
