package cli

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/cachedir"
	"github.com/forkd/forkd/internal/compat05/agent05"
	"github.com/forkd/forkd/internal/daemon"
	"github.com/forkd/forkd/internal/emu/machineapi"
	"github.com/forkd/forkd/internal/emu/tcghost"
)

// Environment variables that locate the daemon. The token has no flag, because other users can read
// command lines.
const (
	urlEnv   = "FORKD_URL"
	tokenEnv = "FORKD_TOKEN"
)

// common holds the flags of all commands that use a daemon.
type common struct {
	url    string
	ca     string
	output string
	where  string // address of the daemon; set by connecting

	streams bool // the command prints while it runs, so a waiting line must not be shown

	hasWide bool // the command has additional columns for -o wide
}

func (c *common) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&c.url, "daemon-url", "",
		"daemon to talk to, unix:///path, http://host:port or https://host:port; default $"+urlEnv+", the running emulated host's, or the local socket")
	cmd.Flags().StringVar(&c.ca, "ca", "",
		"certificate authority, in PEM, that verifies a daemon at https://…; default $"+caEnv+", or the host's")
	formats, words := "text or json", []string{"text", "json"}
	if c.hasWide {
		formats, words = "text, wide or json", append(words, "wide")
	}
	cmd.Flags().StringVarP(&c.output, "output", "o", "text", formats)
	completeWords(cmd, "output", words...)
}

func (c *common) json() bool { return c.output == "json" }

// wide reports whether the additional columns are requested.
func (c *common) wide() bool { return c.hasWide && c.output == "wide" }

// run connects to the daemon and calls f. An interrupt cancels f's context.
func (c *common) run(cmd *cobra.Command, f func(context.Context, *client.Client) error) error {
	if err := checkOutput(c.output); err != nil && !c.wide() {
		return err
	}
	ctx, cancel := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	cl, where, err := connectWith(ctx, c.url, c.ca, cmd.ErrOrStderr())
	c.where = where
	if err != nil {
		return err
	}
	defer cl.Close()
	if errOut := cmd.ErrOrStderr(); !c.streams && canRedraw(errOut) {
		what := strings.Join(append([]string{cmd.CommandPath()}, cmd.Flags().Args()...), " ")
		w := startWaiting(errOut, what, time.Second)
		defer w.end()
		cmd.SetOut(w.before(cmd.OutOrStdout()))
		cmd.SetErr(w.before(errOut))
	}
	err = f(ctx, cl)
	if err != nil && ctx.Err() != nil {
		printLine(cmd.ErrOrStderr(), "forkd: interrupted")
		return exitCode(exitInterrupted)
	}
	var answered *client.Error
	switch answers := errors.As(err, &answered); {
	case answers && answered.Status == http.StatusUnauthorized:
		return fmt.Errorf("%w: set the variable %s to a token ('forkd token new NAME' on the daemon's host makes one)", err,
			tokenEnv)
	case err != nil && !answers && cl.Healthy(ctx) != nil:
		return fmt.Errorf("no forkd daemon answers at %s (%s): %w", where, whatHelps(where, err), reason(err))
	}
	return err
}

// reason returns err without the details that package net/http adds about the request.
func reason(err error) error {
	if asked, ok := errors.AsType[*url.Error](err); ok {
		return asked.Err
	}
	return err
}

// whatHelps returns advice for the case that no daemon answers at the given address.
func whatHelps(where string, err error) string {
	const start = "start one with 'forkd daemon', or 'forkd machine start' where KVM is missing: 'forkd doctor' says which"
	if errors.Is(err, fs.ErrPermission) {
		return "only its own user (with sudo, for example) and the users of its --allow-peer can connect"
	}
	var roots, own daemon.Config
	if os.Getuid() == 0 || roots.Defaults(0, os.Getenv) != nil || own.Defaults(os.Getuid(), os.Getenv) != nil ||
		where != "unix://"+own.Socket {
		return start
	}
	if _, err := os.Stat(filepath.Dir(roots.Socket)); err != nil {
		return start
	}
	return "root seems to run one: use sudo or, if it also serves other users (docs/security.md), " + urlEnv
}

// connect returns a client of a daemon: the daemon at address, else the daemon in a running
// emulated host, else the daemon at the local socket. If the daemon in the emulated host is not
// running, connect starts the daemon and prints a message to the writer progress, which may be nil.
func connect(ctx context.Context, address string, progress io.Writer) (*client.Client, string, error) {
	return connectWith(ctx, address, "", progress)
}

// connectWith is like connect, but also takes the path ca of a file with the authority that signed
// the daemon's certificate.
func connectWith(ctx context.Context, address, ca string, progress io.Writer) (*client.Client, string, error) {
	named := cmp.Or(address, os.Getenv(urlEnv)) != ""
	address, token, err := locate(ctx, address, progress)
	if err != nil {
		return nil, "", err
	}
	options, err := tlsOptions(ca)
	if err != nil {
		return nil, "", err
	}
	if !named && strings.HasPrefix(address, "unix://") {
		options = append(options, client.WithPrivateSocket())
	}
	c, err := client.New(address, token, options...)
	return c, address, err
}

// locate returns the address and the token of the daemon that connect uses.
func locate(ctx context.Context, named string, progress io.Writer) (address, token string, err error) {
	address, token = cmp.Or(named, os.Getenv(urlEnv)), os.Getenv(tokenEnv)
	if address != "" {
		return address, token, nil
	}
	m, ready, err := runningMachine()
	if err != nil {
		return "", "", err
	}
	if ready {
		return machineDaemon(ctx, m, progress)
	}
	cfg := daemon.Config{}
	if err := cfg.Defaults(os.Getuid(), os.Getenv); err != nil {
		return "", "", err
	}
	return "unix://" + cfg.Socket, token, nil
}

// runningMachine returns the emulated host that commands use, and whether it is running.
func runningMachine() (tcghost.Machine, bool, error) {
	cache, err := cachedir.Dir()
	if err != nil {
		return tcghost.Machine{}, false, nil // without a cache there is no emulated host
	}
	name := os.Getenv(machineEnv)
	if name == "" {
		name = tcghost.DefaultName
	}
	m, err := tcghost.Open(cache, name)
	if err != nil {
		return m, false, err
	}
	s, err := m.State()
	return m, err == nil && s.Phase == tcghost.Ready, err
}

// machineDaemon returns the address and token of the daemon in an emulated host. It starts the
// daemon if necessary.
func machineDaemon(ctx context.Context, m tcghost.Machine, progress io.Writer) (address, token string, err error) {
	s, err := m.State()
	if err != nil {
		return "", "", err
	}
	dir := m.DaemonDir()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", "", err
	}
	if token, err = daemonToken(tokenFile(m)); err != nil {
		return "", "", err
	}
	address = "http://" + s.DaemonAddr
	if progress == nil {
		return address, token, nil
	}
	status, err := m.DaemonStatus(ctx)
	switch {
	case err != nil || status.Running:
		return address, token, err
	case status.Restarting:
		printf(progress, "forkd: the daemon in emulated host %s died and is being started again\n", m.Name)
	default:
		printf(progress, "forkd: starting the daemon in emulated host %s\n", m.Name)
		if err := startMachineDaemon(ctx, m, dir); err != nil {
			return "", "", err
		}
	}
	return address, token, waitDaemon(ctx, m, address)
}

// tokenFile returns the file with the token of the daemon in an emulated host.
func tokenFile(m tcghost.Machine) string { return filepath.Join(m.DaemonDir(), "token") }

// machineDocker is the socket of the Docker Engine API in an emulated host. Programs in the emulated
// host reach it.
const machineDocker = "/run/forkd-docker.sock"

// startMachineDaemon runs this program as the daemon of an emulated host.
func startMachineDaemon(ctx context.Context, m tcghost.Machine, dir string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("start the daemon in the emulated host: %w", err)
	}
	program := filepath.Join(dir, "forkd")
	if err := installProgram(program, self); err != nil {
		return fmt.Errorf("start the daemon in the emulated host: %w", err)
	}
	argv := append([]string{program, "daemon", "--token-file", tokenFile(m), "--node", m.Name,
		"--guest-port", strconv.Itoa(agent05.Port), "--docker-socket", machineDocker}, tcghost.DaemonArgs()...)
	// The daemon can read the cache of this host, which has the kernels and images that this host
	// has built.
	_, err = m.StartDaemon(ctx, machineapi.DaemonStart{Argv: argv, Env: []string{"FORKD_CACHE=" + m.CacheDir()}})
	if err != nil {
		return fmt.Errorf("start the daemon in the emulated host: %w", err)
	}
	return nil
}

// installProgram copies this program to a path that the emulated host sees. If an identical copy is
// there, installProgram does nothing.
func installProgram(to, from string) error {
	p, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if old, err := os.ReadFile(to); err == nil && bytes.Equal(old, p) {
		return nil
	}
	return atomicfile.Write(to, p, 0o700)
}

// daemonStart bounds the time for starting a daemon on an emulated CPU.
const daemonStart = 60 * time.Second

// waitDaemon waits until a daemon answers. It returns an error if the daemon exits.
func waitDaemon(ctx context.Context, m tcghost.Machine, address string) error {
	ctx, cancel := context.WithTimeout(ctx, daemonStart)
	defer cancel()
	c, err := client.New(address, "")
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		if c.Healthy(ctx) == nil {
			return nil
		}
		status, err := m.DaemonStatus(ctx)
		if err == nil && !status.Running && !status.Restarting {
			return fmt.Errorf("the daemon in the emulated host ended at once:\n%s", strings.TrimSpace(status.Log))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the daemon in the emulated host does not answer: %w", ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// daemonToken returns the token in a file. If the file is missing, it is created with a random
// token.
func daemonToken(path string) (string, error) {
	p, err := os.ReadFile(path)
	if err == nil {
		return strings.TrimSpace(string(p)), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read the daemon's token: %w", err)
	}
	var secret [32]byte
	rand.Read(secret[:])
	token := hex.EncodeToString(secret[:])
	if err := atomicfile.Write(path, []byte(token+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("write the daemon's token: %w", err)
	}
	return token, nil
}
