// Command twohosts shows snapshots and sandboxes on two emulated hosts: `scripts/test two-hosts`.
//
// Host a builds a snapshot and pushes it to a registry on this host. Host b has nothing, forks the
// snapshot from the registry, and runs Python in the child before a tenth of the bytes has come. A
// router on this host then serves both hosts' daemons, and an unmodified E2B SDK creates 20
// sandboxes through it and runs commands in each. All sandboxes of host a move to host b, with their
// memory, and the SDK goes on with them. The command exits with 1 if something is not as it should
// be.
//
// Other modes of this program run in the emulated hosts. `twohosts forward LISTEN TO` passes
// connections on: the registry's address is localhost:5000 there, and the daemon of host a has the
// address localhost:7001 on host b. `twohosts get FILE` and `twohosts put FILE` copy a file from or
// to the emulated host.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/cachedir"
	"github.com/forkd/forkd/internal/emu/machineapi"
)

const (
	inHosts   = "localhost:5000"             // the registry's address in the emulated hosts
	reference = inHosts + "/python-numpy:1"  // the snapshot in the registry
	snapshot  = "python-numpy"               // the recipe and the tag
	thisHost  = "10.0.2.2"                   // this host, seen by a guest of QEMU (user network)
	sum       = "numpy.arange(100000).sum()" // what the children compute
	sumIs     = "4999950000"
	sandboxes = 20
	daemonA   = "localhost:7001"                    // the address of host a's daemon on host b
	tokensKey = machineapi.StateDir + "/tokens.key" // the key of the tokens of E2B's sandboxes
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "twohosts: %v\n", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	forkd := flag.String("forkd", "bin/forkd", "the `program` forkd")
	python := flag.String("python", "python3", "an `interpreter` that has the package e2b")
	flag.Parse()
	switch args := flag.Args(); {
	case len(args) == 3 && args[0] == "forward":
		return forward(ctx, args[1], args[2])
	case len(args) == 2 && args[0] == "get":
		p, err := os.ReadFile(args[1])
		if err != nil {
			return err
		}
		_, err = os.Stdout.Write(p)
		return err
	case len(args) == 2 && args[0] == "put":
		p, err := io.ReadAll(os.Stdin)
		if err != nil {
			return err
		}
		return os.WriteFile(args[1], p, 0o600)
	case len(args) == 2:
		t := trial{forkd: *forkd, python: *python}
		return t.run(ctx, args[0], args[1])
	}
	return errors.New("usage: twohosts [-forkd PROGRAM] [-python PROGRAM] HOST HOST | twohosts forward LISTEN TO")
}

// trial is one run of the test.
type trial struct {
	forkd, python string         // programs
	background    sync.WaitGroup // the programs that run until the test ends
}

// start starts a program that runs until the context of cmd ends.
func (t *trial) start(cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	t.background.Go(func() { _ = cmd.Wait() })
	return nil
}

// host is an emulated host with its daemon.
type host struct {
	*trial
	name  string
	url   string // of the daemon
	token string
	*client.Client
}

func (t *trial) run(ctx context.Context, nameA, nameB string) error {
	ctx, stop := context.WithCancel(ctx)
	defer t.background.Wait()
	defer stop()
	store := &countingRegistry{handler: registry.New(registry.Logger(log.New(io.Discard, "", 0)))}
	address, err := store.serve(ctx)
	if err != nil {
		return err
	}
	a, err := t.startHost(ctx, nameA, address, nil)
	if err != nil {
		return err
	}
	b, err := t.startHost(ctx, nameB, address, a)
	if err != nil {
		return err
	}
	if err := travel(ctx, store, a, b); err != nil {
		return err
	}
	return t.together(ctx, a, b)
}

// startHost starts the emulated host and its daemon, and forwards the registry's address there. The
// daemon accepts the same tokens as the host first, if there is one.
func (t *trial) startHost(ctx context.Context, name, registry string, first *host) (*host, error) {
	h := &host{trial: t, name: name}
	cache, err := cachedir.Dir()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(cache, "machine", name, "daemon", "token")
	if first != nil {
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return nil, err
		}
		if err := os.WriteFile(file, []byte(first.token+"\n"), 0o600); err != nil {
			return nil, err
		}
	}
	if _, err := h.cli(ctx, "machine", "start", "--hang-limit", "5m"); err != nil {
		return nil, err
	}
	if first != nil {
		key, err := first.inside(ctx, nil, "get", tokensKey).Output()
		if err != nil {
			return nil, fmt.Errorf("read %s of %s: %w", tokensKey, first.name, err)
		}
		if err := h.inside(ctx, bytes.NewReader(key), "put", tokensKey).Run(); err != nil {
			return nil, fmt.Errorf("write %s of %s: %w", tokensKey, name, err)
		}
	}
	if _, err := h.cli(ctx, "ls"); err != nil { // starts the daemon
		return nil, err
	}
	p, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	h.token = strings.TrimSpace(string(p))
	out, err := h.cli(ctx, "machine", "status", "-o", "json")
	if err != nil {
		return nil, err
	}
	var status struct {
		Address string `json:"daemon_addr"`
	}
	if err := json.Unmarshal([]byte(out), &status); err != nil {
		return nil, err
	}
	h.url = "http://" + status.Address
	if h.Client, err = client.New(h.url, h.token); err != nil {
		return nil, err
	}
	forwards := map[string]string{inHosts: registry}
	if first != nil {
		forwards[daemonA] = strings.TrimPrefix(first.url, "http://")
	}
	for listen, to := range forwards {
		_, port, err := net.SplitHostPort(to)
		if err != nil {
			return nil, err
		}
		if err := t.start(h.inside(ctx, nil, "forward", listen, net.JoinHostPort(thisHost, port))); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// inside returns a command that runs this program in the emulated host.
func (h *host) inside(ctx context.Context, stdin io.Reader, args ...string) *exec.Cmd {
	cmd := h.command(ctx, append([]string{"machine", "exec", "--copy", "--", "/proc/self/exe"}, args...)...)
	if self, err := os.Executable(); err == nil {
		cmd.Args[slices.Index(cmd.Args, "/proc/self/exe")] = self
	}
	cmd.Stdin = stdin
	return cmd
}

// command returns a command of the CLI for this host.
func (h *host) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, h.forkd, args...)
	cmd.Env = append(os.Environ(), "FORKD_MACHINE="+h.name, "FORKD_URL=", "FORKD_TOKEN=")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// cli runs a command of the CLI and returns its output.
func (h *host) cli(ctx context.Context, args ...string) (string, error) {
	start := time.Now()
	cmd := h.command(ctx, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	fmt.Printf("%s: forkd %s (%.1f s)\n", h.name, strings.Join(args, " "), time.Since(start).Seconds())
	if err != nil {
		return "", fmt.Errorf("forkd %s on %s: %w\n%s", strings.Join(args, " "), h.name, err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// travel pushes a snapshot from a and forks it on b, which has no snapshot.
func travel(ctx context.Context, store *countingRegistry, a, b *host) error {
	for _, args := range [][]string{
		{"build", snapshot, "--tag", snapshot, "--reuse", "--ready-timeout-secs", "1200"},
		{"push", snapshot, reference, "--record-hot"},
	} {
		if _, err := a.cli(ctx, args...); err != nil {
			return err
		}
	}
	if list, err := b.cli(ctx, "images", "-q"); err != nil || list != "" {
		return fmt.Errorf("host %s has snapshots already: %q, %w", b.name, list, err)
	}
	all := store.stored.Load()
	id, err := b.cli(ctx, "fork", reference, "--trust", "off")
	if err != nil {
		return err
	}
	if err := evaluates(ctx, b, id); err != nil {
		return err
	}
	came := store.sent.Load()
	share := 100 * float64(came) / float64(all)
	fmt.Printf("the child on %s has answered when %.1f of %.1f MiB had come: %.1f %%\n", b.name,
		float64(came)/(1<<20), float64(all)/(1<<20), share)
	if share >= 10 {
		return errors.New("the child has answered only after a tenth of the bytes")
	}
	if err := arrived(ctx, b); err != nil {
		return err
	}
	for _, args := range [][]string{{"verify", snapshot}, {"kill", id}} {
		if _, err := b.cli(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

func evaluates(ctx context.Context, h *host, id string) error {
	out, err := h.cli(ctx, "eval", id, sum, "--timeout", "300")
	if err != nil {
		return err
	}
	if !strings.Contains(out, sumIs) {
		return fmt.Errorf("a child on %s computes %q, not %s", h.name, out, sumIs)
	}
	return nil
}

// arrived waits until the whole snapshot is on the host.
func arrived(ctx context.Context, h *host) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	for {
		s, err := h.Snapshot(ctx, snapshot)
		if err != nil {
			return err
		}
		switch {
		case s.Arriving:
			time.Sleep(time.Second)
		case s.Status == "ready":
			return nil
		default:
			return fmt.Errorf("the snapshot on %s is %s: %s", h.name, s.Status, s.Warning)
		}
	}
}

// together starts a router for both hosts, and runs an E2B program that has many sandboxes. Each
// host must have some of them. Then all of them move to host b.
func (t *trial) together(ctx context.Context, a, b *host) error {
	url, err := t.startRouter(ctx, a, b)
	if err != nil {
		return err
	}
	program := filepath.Join("test", "twohosts", "many.py")
	cmd := exec.CommandContext(ctx, t.python, program, snapshot, strconv.Itoa(sandboxes))
	cmd.Env = append(os.Environ(), "E2B_API_URL="+url, "E2B_SANDBOX_URL="+url, "E2B_API_KEY="+a.token,
		"E2B_VALIDATE_API_KEY=false")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	line, _ := bufio.NewReader(stdout).ReadString('\n')
	if strings.TrimSpace(line) != "created" {
		return errors.Join(fmt.Errorf("many.py says %q", line), cmd.Wait())
	}
	ids, err := a.ids(ctx)
	if err != nil {
		return err
	}
	others, err := b.ids(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("host %s has %d sandboxes, host %s has %d\n", a.name, len(ids), b.name, len(others))
	if len(ids) == 0 || len(others) == 0 || len(ids)+len(others) != sandboxes {
		return fmt.Errorf("want %d sandboxes, some on each host", sandboxes)
	}
	for _, id := range ids {
		start := time.Now()
		cmd := a.command(ctx, "move", id, b.name, "--registry", daemonA)
		cmd.Env = append(cmd.Env, "FORKD_MACHINE=", "FORKD_URL="+url, "FORKD_TOKEN="+a.token)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("move %s: %w\n%s", id, err, out)
		}
		fmt.Printf("moved %s to %s (%.1f s)\n", id, b.name, time.Since(start).Seconds())
	}
	if others, err = b.ids(ctx); err != nil || len(others) != sandboxes {
		return fmt.Errorf("host %s has %d sandboxes, not %d; %w", b.name, len(others), sandboxes, err)
	}
	if err := stdin.Close(); err != nil { // many.py goes on
		return err
	}
	return cmd.Wait()
}

// ids returns the ids of the sandboxes on the host.
func (h *host) ids(ctx context.Context) (ids []string, err error) {
	list, err := h.Sandboxes(ctx)
	for _, s := range list {
		ids = append(ids, s.ID)
	}
	return ids, err
}

// startRouter starts `forkd router` for the hosts and returns its URL.
func (t *trial) startRouter(ctx context.Context, hosts ...*host) (string, error) {
	dir, err := os.MkdirTemp("", "twohosts-*")
	if err != nil {
		return "", err
	}
	context.AfterFunc(ctx, func() { os.RemoveAll(dir) })
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte(hosts[0].token), 0o600); err != nil {
		return "", err
	}
	type node struct {
		Name  string `json:"name"`
		URL   string `json:"url"`
		Token string `json:"token_file"`
	}
	var nodes struct {
		Nodes []node `json:"nodes"`
	}
	for _, h := range hosts {
		nodes.Nodes = append(nodes.Nodes, node{h.name, h.url, token})
	}
	p, err := json.Marshal(nodes)
	if err != nil {
		return "", err
	}
	list := filepath.Join(dir, "nodes.json")
	if err := os.WriteFile(list, p, 0o600); err != nil {
		return "", err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	address := l.Addr().String()
	l.Close()
	cmd := hosts[0].command(ctx, "router", "--nodes", list, "--bind", address)
	cmd.Stderr = os.Stderr
	if err := t.start(cmd); err != nil {
		return "", err
	}
	c, err := client.New("http://"+address, hosts[0].token)
	if err != nil {
		return "", err
	}
	defer c.Close()
	for range 300 {
		if _, err = c.Snapshot(ctx, snapshot); err == nil {
			return "http://" + address, nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return "", fmt.Errorf("the router does not find the snapshot: %w", err)
}
