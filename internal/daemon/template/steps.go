package template

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/host/agentclient"
)

// Times of commands of clients: those of E2B.
const (
	maxCommand = time.Hour
	maxReady   = 10 * time.Minute
	readyEvery = 2 * time.Second
	readyAfter = 20 * time.Second // a start command that nothing says it of
)

// defaultUser is whom steps are carried out as until a step names another, where the guest has the
// account; else it is root.
const defaultUser = "user"

// command is one that is run in the guest.
type command struct {
	args   []string
	user   string // empty: the guest's default
	dir    string // empty: likewise
	within time.Duration
	level  string // of what it says; empty: levelInfo
	prefix string // of each line of that
}

// run runs a command and logs what it says.
func (w *work) run(ctx context.Context, c *agentclient.Client, cmd command) error {
	each := lines{log: &w.bd.Log, level: cmp.Or(cmd.level, levelInfo), step: w.step, prefix: cmd.prefix}
	out := [2]lines{each, each}
	r, err := c.ExecStream(ctx, agentclient.ExecRequest{Args: cmd.args, User: cmd.user, UserElse: defaultUser,
		Cwd: cmd.dir, Timeout: cmd.within},
		func(s agentclient.Stream, p []byte) error {
			if s == agentclient.Stdout {
				return out[0].add(p)
			}
			return out[1].add(p)
		})
	out[0].end()
	out[1].end()
	if err != nil {
		return err
	}
	return failure(r, cmd.within)
}

// Bounds on what the guest has the host keep, in bytes.
const (
	maxAnswer = 1 << 20   // of a program of our own: the value of a variable, at most
	maxEnv    = maxAnswer // of all variables of one step: Linux gives a program 2 MiB for them
)

// ask runs a program of our own and returns what it says.
func (w *work) ask(ctx context.Context, c *agentclient.Client, user, script string, args ...string) (string, error) {
	r, err := c.Exec(ctx, agentclient.ExecRequest{Args: append([]string{"/bin/sh", "-c", script, "sh"}, args...),
		User: user, UserElse: defaultUser,
		Timeout: ownTime, MaxOutput: maxAnswer})
	if err != nil {
		return "", err
	}
	if err := failure(r, ownTime); err != nil {
		return "", fmt.Errorf("%w: %s", err, strings.TrimSpace(printable(string(r.Stderr))))
	}
	return strings.TrimSuffix(string(r.Stdout), "\n"), nil
}

// failure returns an error for a command that has not succeeded.
func failure(r agentclient.ExecResult, within time.Duration) error {
	if r.Outcome == agentclient.Exited && r.ExitCode != 0 {
		return fmt.Errorf("exit status %d", r.ExitCode)
	}
	err := r.Err()
	if errors.Is(err, agentclient.ErrTimeout) {
		return fmt.Errorf("not done after %v", within)
	}
	return err
}

// settle finds out what commands are run with, and makes the directory that they are run in that of
// whatever user.
func (w *work) settle(ctx context.Context, c *agentclient.Client) error {
	dir, err := w.ask(ctx, c, "", "pwd")
	if err != nil {
		return err
	}
	w.shell = "/bin/bash"
	if _, err := c.Stat(ctx, w.shell, "root"); err != nil {
		w.shell = "/bin/sh" // if it is not there either, the first command says so
	}
	return c.SetDefaults(ctx, agentclient.Defaults{Dir: dir})
}

// client returns a command of the client's.
func (w *work) client(text, user string, within time.Duration) command {
	return command{args: []string{w.shell, "-l", "-c", text}, user: user, within: within}
}

// do carries out one step.
func (w *work) do(ctx context.Context, c *agentclient.Client, s Step) error {
	switch s.Type {
	case typeRun:
		if err := w.run(ctx, c, w.client(s.Args[0], s.arg(1), maxCommand)); err != nil {
			return fmt.Errorf("%.200q: %w", s.Args[0], err)
		}
		return nil
	case typeEnv, typeArg:
		return w.setEnv(ctx, c, s.Args)
	case typeWorkdir:
		return w.setWorkdir(ctx, c, s.Args[0])
	case typeUser:
		return w.setUser(ctx, c, s.Args[0])
	}
	return w.copy(ctx, c, s)
}

// expand puts the values of variables into a text, as the guest's shell does in double quotes,
// where it runs nothing.
func (w *work) expand(ctx context.Context, c *agentclient.Client, text string) (string, error) {
	if !strings.Contains(text, "$") {
		return text, nil
	}
	quoted := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "`", "\\`", "$(", `\$(`).Replace(text)
	r, err := w.ask(ctx, c, "root", `printf '%s.' "`+quoted+`"`)
	return strings.TrimSuffix(r, "."), err // the dot keeps an end of line that is the value's
}

func (w *work) setEnv(ctx context.Context, c *agentclient.Client, args []string) error {
	env := make(map[string]string)
	bytes := 0
	for n := 0; n < len(args); n += 2 {
		value, err := w.expand(ctx, c, args[n+1])
		if err != nil {
			return fmt.Errorf("%s: %w", args[n], err)
		}
		if bytes += len(args[n]) + len(value); bytes > maxEnv {
			return fmt.Errorf("%s: the variables of the step have more than %d KiB", args[n], maxEnv>>10)
		}
		env[args[n]] = value
	}
	return c.SetDefaults(ctx, agentclient.Defaults{Env: env})
}

// setWorkdir makes a directory, with its parents, and gives those that are new to the user.
func (w *work) setWorkdir(ctx context.Context, c *agentclient.Client, dir string) error {
	dir, err := w.expand(ctx, c, dir)
	if err != nil {
		return err
	}
	who, at, err := w.where(ctx, c)
	if err != nil {
		return err
	}
	if !path.IsAbs(dir) {
		dir = path.Join(at, dir)
	}
	dir, err = w.ask(ctx, c, "root", workdirScript, dir, who)
	if err != nil {
		return err
	}
	return c.SetDefaults(ctx, agentclient.Defaults{Dir: dir})
}

// where returns the user and the directory of the steps that follow.
func (w *work) where(ctx context.Context, c *agentclient.Client) (who, dir string, err error) {
	text, err := w.ask(ctx, c, "", "id -un; pwd")
	who, dir, _ = strings.Cut(text, "\n")
	return who, dir, err
}

// setUser makes a user the default. One that is not there is made.
func (w *work) setUser(ctx context.Context, c *agentclient.Client, name string) error {
	name, err := w.expand(ctx, c, name)
	if err != nil {
		return err
	}
	if !ownerForm.MatchString(name) {
		return fmt.Errorf("%.40q: want the name of a user", name)
	}
	name, _, _ = strings.Cut(name, ":") // a group has no meaning: the user has those of the account
	if name, err = w.ask(ctx, c, "root", userScript, name); err != nil {
		return err
	}
	return c.SetDefaults(ctx, agentclient.Defaults{User: name})
}

// Programs for the guest's shell.
var (
	//go:embed workdir.sh
	workdirScript string
	//go:embed user.sh
	userScript string
	//go:embed copy.sh
	copyScript string
)

// copyDir makes an empty directory on the guest's disk that only root can use: /tmp may be memory.
const copyDir = "mkdir -p /var/tmp && mktemp -d /var/tmp/forkd-copy.XXXXXX"

// copy unpacks an archive in the guest, and moves what is meant to where it is to be.
func (w *work) copy(ctx context.Context, c *agentclient.Client, s Step) (err error) {
	who, at, err := w.where(ctx, c)
	if err != nil {
		return err
	}
	owner := s.arg(2)
	if owner == "" {
		owner = who
	}
	target, err := w.expand(ctx, c, s.Args[1])
	if err != nil {
		return err
	}
	if !path.IsAbs(target) {
		target = at + "/" + target // a '/' at its end means a directory
	}
	dir, err := w.ask(ctx, c, "root", copyDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Remove(ctx, dir, "root")) }()
	f, err := os.Open(w.b.uploads.path(w.bd.ID, s.FilesHash))
	if err != nil {
		return err
	}
	defer f.Close()
	content, err := w.plain(f)
	if err != nil {
		return err
	}
	if err := c.WriteTree(ctx, dir+"/files", "root", content); err != nil {
		return err
	}
	script := command{args: []string{"/bin/sh", "-c", copyScript, "sh", path.Join(dir, "files", sourceOf(s.Args[0])),
		target, owner, s.arg(3)},
		user: "root", dir: "/", within: maxCommand}
	return w.run(ctx, c, script)
}

// maxUnpacked bounds the content of all archives that a build unpacks, in bytes: a few of them
// compressed may become any number, and it is the daemon that takes their compression away.
const maxUnpacked = 64 << 30

// unpacking is the content of an archive, which counts for its build.
type unpacking struct {
	io.Reader
	w *work
}

// Read implements io.Reader.
func (u *unpacking) Read(p []byte) (int, error) {
	if u.w.unpacked > maxUnpacked {
		return 0, fmt.Errorf("the archives of the build have more than %d GiB without their compression", maxUnpacked>>30)
	}
	n, err := u.Reader.Read(p)
	u.w.unpacked += int64(n)
	return n, err
}

// plain returns what an archive is without its compression, if it has one.
func (w *work) plain(f io.Reader) (io.Reader, error) {
	in := bufio.NewReader(f)
	if magic, err := in.Peek(2); err != nil || magic[0] != 0x1f || magic[1] != 0x8b { // RFC 1952, section 2.3.1
		return &unpacking{in, w}, nil
	}
	z, err := gzip.NewReader(in)
	if err != nil {
		return nil, fmt.Errorf("the archive that was sent: %w", err)
	}
	return &unpacking{z, w}, nil
}
