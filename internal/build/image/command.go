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
	toolTar        = tool{"tar", "tar"}
	toolFallocate  = tool{"fallocate", "util-linux"}
	toolUnshare    = tool{"unshare", "util-linux"}
	toolNewuidmap  = tool{"newuidmap", "uidmap"}
	toolAptGet     = tool{"apt-get", "apt"}
	toolDpkgDeb    = tool{"dpkg-deb", "dpkg"}
)

// MissingError means that the host lacks something that only its administrator can add.
type MissingError struct {
	Packages []string // Debian packages to install; empty if that is not the remedy
	Problem  string   // if Packages is empty: what is wrong and what to do
}

func (e *MissingError) Error() string {
	if len(e.Packages) == 0 {
		return e.Problem
	}
	return fmt.Sprintf("missing on this host: %s; install as root: apt-get install --no-install-recommends %s",
		strings.Join(e.Packages, ", "), strings.Join(e.Packages, " "))
}

// require returns a *MissingError if one of tools is not there. mke2fs is in /usr/sbin, which is
// not in everyone's PATH.
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

// asRoot returns argv, run as root of a user namespace with the caller's subordinate ids where the
// caller is not root, so that the files it makes can have any owner.
func asRoot(argv ...string) []string {
	if os.Geteuid() == 0 {
		return argv
	}
	return append([]string{"unshare", "--map-root-user", "--map-auto", "--"}, argv...)
}

// requireOwners checks that asRoot can work.
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

// removeTree removes dir, also where its files belong to subordinate ids.
func removeTree(dir string) error {
	err := os.RemoveAll(dir)
	if err == nil || os.Geteuid() == 0 {
		return err
	}
	return run(context.Background(), nil, io.Discard, nil, asRoot("rm", "-rf", "--", dir)...)
}

// errorTail is how many of a tool's last lines are quoted when it fails.
const errorTail = 12

// run runs argv with a fixed locale and nothing but PATH, HOME and proxy settings of our
// environment. Each line on stderr is given to line (which may be nil); the last ones are part of
// the error. Cancelling ctx terminates argv and all its children.
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

// cleanupTime is what a cancelled tool has for removing what it made: mmdebstrap unmounts and
// removes a whole tree.
const cleanupTime = 10 * time.Second

// startAndWait runs cmd until it has ended and all of its input and output has been passed on,
// however long the other ends take. Once ctx is done it has cleanupTime left. (WaitDelay of os/exec
// would bound the passing on as well, also where nothing was cancelled: a build on a slow disk
// would fail.)
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
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // it may have ended just now
		case <-ended:
		}
	}()
	return cmd.Wait()
}

// output runs argv and returns what it wrote to stdout, at most limit bytes.
func output(ctx context.Context, limit int, argv ...string) ([]byte, error) {
	var out bytes.Buffer
	w := &limitWriter{w: &out, left: int64(limit), err: fmt.Errorf("%s wrote more than %d bytes", argv[0], limit)}
	if err := run(ctx, nil, w, nil, argv...); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// toolEnv keeps what the tools need. SOURCE_DATE_EPOCH goes through for builds that have to be
// reproducible.
func toolEnv(environ []string) []string {
	env := []string{"LC_ALL=C", "TZ=UTC", "DEBIAN_FRONTEND=noninteractive", "MKE2FS_CONFIG=/dev/null"}
	keep := map[string]bool{"PATH": true, "HOME": true, "USER": true, "TMPDIR": true, "SOURCE_DATE_EPOCH": true,
		"http_proxy": true, "https_proxy": true, "no_proxy": true, "HTTPS_PROXY": true, "NO_PROXY": true}
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		if name == "PATH" {
			kv += ":/usr/sbin:/sbin" // not in every user's PATH, and the tools look for more tools
		}
		if keep[name] {
			env = append(env, kv)
		}
	}
	return env
}

// lineWriter splits what is written into lines and keeps the last ones.
type lineWriter struct {
	each func(string)
	part []byte
	last []string
}

// maxLine bounds a line without an end.
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

// limitWriter passes left bytes on and then fails with err.
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
