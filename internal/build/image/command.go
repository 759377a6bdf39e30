package image

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// tool is a program of the distribution that a build runs.
type tool struct{ name, pkg string }

var (
	toolMmdebstrap = tool{"mmdebstrap", "mmdebstrap"}
	toolMke2fs     = tool{"mke2fs", "e2fsprogs"}
	toolFallocate  = tool{"fallocate", "util-linux"}
	toolUnshare    = tool{"unshare", "util-linux"}
	toolNewuidmap  = tool{"newuidmap", "uidmap"}
	toolAptGet     = tool{"apt-get", "apt"}
	toolDpkgDeb    = tool{"dpkg-deb", "dpkg"}
)

// MissingError means that the host lacks a tool or a right that its administrator must add.
type MissingError struct {
	Packages []string // Debian packages to install; empty if no package helps
	Problem  string   // the problem and its solution, if Packages is empty
}

func (e *MissingError) Error() string {
	if len(e.Packages) == 0 {
		return e.Problem
	}
	return fmt.Sprintf("missing on this host: %s; install as root: apt-get install --no-install-recommends %s",
		strings.Join(e.Packages, ", "), strings.Join(e.Packages, " "))
}

// require returns a *MissingError if a tool is missing.
func require(tools ...tool) error {
	var missing []string
	for _, t := range tools {
		if _, err := lookPath(t); err != nil {
			missing = append(missing, t.pkg)
		}
	}
	if len(missing) > 0 {
		return &MissingError{Packages: missing}
	}
	return nil
}

// lookPath finds a tool in PATH. mke2fs is in /usr/sbin, which is not in every user's PATH, so
// lookPath also searches there and in /sbin.
func lookPath(t tool) (string, error) {
	p, err := exec.LookPath(t.name)
	if err == nil {
		return p, nil
	}
	for _, dir := range []string{"/usr/sbin/", "/sbin/"} {
		if p, err := exec.LookPath(dir + t.name); err == nil {
			return p, nil
		}
	}
	return "", err
}

// asRoot wraps argv so that it runs as root. If the caller is not root, argv runs as root of a user
// namespace with the caller's subordinate ids, so that the files that it creates can have any
// owner.
func asRoot(argv ...string) []string {
	if os.Geteuid() == 0 {
		return argv
	}
	return append([]string{"unshare", "--map-root-user", "--map-auto", "--"}, argv...)
}

// requireOwners returns an error if asRoot cannot work.
func requireOwners(ctx context.Context) error {
	if os.Geteuid() == 0 {
		return nil
	}
	if err := require(toolUnshare, toolNewuidmap); err != nil {
		return err
	}
	if err := run(ctx, nil, io.Discard, nil, asRoot("true")...); err != nil {
		return &MissingError{Problem: fmt.Sprintf("making a file system with the right owners needs root, or user namespaces with subordinate ids: "+
			"run as root, or give this user a range in /etc/subuid and /etc/subgid (as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 %s): %v",
			os.Getenv("USER"), err)}
	}
	return nil
}

// removeTree removes dir, even if its files belong to subordinate ids.
func removeTree(dir string) error {
	err := os.RemoveAll(dir)
	if err == nil || os.Geteuid() == 0 {
		return err
	}
	return run(context.Background(), nil, io.Discard, nil, asRoot("rm", "-rf", "--", dir)...)
}

// errorTail is the number of a tool's last output lines that are quoted when it fails.
const errorTail = 12

// run runs argv with a fixed locale. The environment of argv has only PATH, HOME and a few settings
// of the caller, such as proxies (see toolEnv). run passes each line of stderr to the function
// line, which may be nil. The error quotes the last lines. Cancelling ctx terminates the program
// and all its child processes.
func run(ctx context.Context, stdin io.Reader, stdout io.Writer, line func(string), argv ...string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	if p, err := lookPath(tool{name: argv[0]}); err == nil {
		cmd.Path, cmd.Err = p, nil
	}
	cmd.Env = toolEnv(os.Environ())
	cmd.Stdin, cmd.Stdout = stdin, stdout
	tail := &lineWriter{each: line}
	cmd.Stderr = tail
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	err := startAndWait(ctx, cmd)
	name := argv[0]
	if i := slices.Index(argv, "--"); name == toolUnshare.name && i > 0 {
		name = argv[i+1]
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", name, context.Cause(ctx))
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return fmt.Errorf("%s: %w:\n\t%s", name, err, strings.Join(tail.last, "\n\t"))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// cleanupTime is how long a cancelled tool may take to remove its files. For example, mmdebstrap
// unmounts and removes a whole tree.
const cleanupTime = 10 * time.Second

// startAndWait runs cmd. It returns when cmd has exited, and all input and output of cmd has been
// copied, however long the copying takes. Once ctx is done, cmd may continue for cleanupTime.
// (WaitDelay of os/exec would limit the copying even without a cancellation, and so fail a build on
// a slow disk.)
func startAndWait(ctx context.Context, cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-ctx.Done():
		case <-ended:
			return
		}
		select {
		case <-time.After(cleanupTime):
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // the process may just have exited
		case <-ended:
		}
	}()
	return cmd.Wait()
}

// output runs argv and returns its output on stdout, at most limit bytes.
func output(ctx context.Context, stdin io.Reader, limit int, argv ...string) ([]byte, error) {
	var out bytes.Buffer
	w := &limitWriter{w: &out, left: int64(limit), err: fmt.Errorf("%s wrote more than %d bytes", argv[0], limit)}
	if err := run(ctx, stdin, w, nil, argv...); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// toolEnv returns the environment variables that the tools need. SOURCE_DATE_EPOCH is passed for
// builds that must be reproducible.
func toolEnv(environ []string) []string {
	env := []string{"LC_ALL=C", "TZ=UTC", "DEBIAN_FRONTEND=noninteractive", "MKE2FS_CONFIG=/dev/null"}
	keep := map[string]bool{"PATH": true, "HOME": true, "USER": true, "TMPDIR": true, "SOURCE_DATE_EPOCH": true,
		"http_proxy": true, "https_proxy": true, "no_proxy": true, "HTTPS_PROXY": true, "NO_PROXY": true}
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		if name == "PATH" {
			kv += ":/usr/sbin:/sbin" // the tools start programs from these directories, which not every user's PATH has
		}
		if keep[name] {
			env = append(env, kv)
		}
	}
	return env
}

// lineWriter splits its input into lines and keeps the last lines.
type lineWriter struct {
	each func(string)
	part []byte
	last []string
}

// maxLine is the maximum length in bytes of a line; longer lines are split.
const maxLine = 4096

func (w *lineWriter) Write(p []byte) (int, error) {
	w.part = append(w.part, p...)
	for {
		advance, line, _ := bufio.ScanLines(w.part, len(w.part) > maxLine)
		if advance == 0 {
			return len(p), nil
		}
		w.part = w.part[advance:]
		text := strings.TrimSpace(string(line))
		if text == "" {
			continue
		}
		w.last = append(w.last, text)
		w.last = w.last[max(0, len(w.last)-errorTail):]
		if w.each != nil {
			w.each(text)
		}
	}
}

// limitWriter writes at most left bytes to w. Then it fails with the error err.
type limitWriter struct {
	w    io.Writer
	left int64
	err  error
}

func (w *limitWriter) Write(p []byte) (int, error) {
	if int64(len(p)) > w.left {
		return 0, w.err
	}
	w.left -= int64(len(p))
	return w.w.Write(p)
}
