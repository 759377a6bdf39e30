// Command twohosts shows snapshots and sandboxes on two emulated hosts: `scripts/test two-hosts`.
//
// Host a builds a snapshot and pushes it to a registry on this host. Host b has nothing, forks the
// snapshot from the registry, and runs Python in the child before a tenth of the bytes has come.
// Then both hosts are nodes of a Kubernetes cluster: a real API server and the operator run on this
// host, and the operator writes the list of nodes for a router. An unmodified E2B SDK creates 20
// sandboxes through the router, which are on both hosts, and runs commands in each. `kubectl cordon`
// and `forkd drain` move all sandboxes of host a to host b, with their memory, and the SDK goes on
// with them. The command exits with 1 if something is not as it should be.
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
	return h.run(h.command(ctx, args...))
}

// run runs a command of the CLI with more variables in its environment, and returns its output.
func (h *host) run(cmd *exec.Cmd, env ...string) (string, error) {
	start := time.Now()
	cmd.Env = append(cmd.Env, env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	what := "forkd " + strings.Join(cmd.Args[1:], " ")
	fmt.Printf("%s: %s (%.1f s)\n", h.name, what, time.Since(start).Seconds())
	if err != nil {
		return "", fmt.Errorf("%s on %s: %w\n%s%s", what, h.name, err, out, stderr.String())
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

// together makes the hosts nodes of a Kubernetes cluster, and starts a router for the nodes. An E2B
// program creates sandboxes through the router, and both hosts must get some. Host a is drained, and
// the program goes on.
func (t *trial) together(ctx context.Context, a, b *host) error {
	cluster, err := t.startCluster(ctx, a, b)
	if err != nil {
		return err
	}
	url, err := cluster.startRouter(ctx, a)
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
	if err := haveSandboxes(ctx, a, b, sandboxes/4); err != nil {
		return err
	}
	if _, err := cluster.kubectl(ctx, "", "cordon", a.name); err != nil {
		return err
	}
	for try := 1; ; try++ {
		// Until the operator and the router have seen that the node is cordoned, the command is refused.
		out, err := a.through(ctx, url, "drain", a.name, "--registry", daemonA)
		if err == nil {
			fmt.Println(out)
			break
		}
		if !strings.Contains(err.Error(), "cordon") || ctx.Err() != nil || try == 300 {
			return err
		}
		time.Sleep(time.Second)
	}
	if err := haveSandboxes(ctx, b, a, sandboxes); err != nil {
		return err
	}
	if err := stdin.Close(); err != nil { // many.py goes on
		return err
	}
	return cmd.Wait()
}

// haveSandboxes checks that both hosts together have all sandboxes, and host h at least some of
// them.
func haveSandboxes(ctx context.Context, h, other *host, some int) error {
	mine, err := h.Sandboxes(ctx)
	if err != nil {
		return err
	}
	others, err := other.Sandboxes(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("host %s has %d sandboxes, host %s has %d\n", h.name, len(mine), other.name, len(others))
	if len(mine) < some || len(mine)+len(others) != sandboxes {
		return fmt.Errorf("want %d sandboxes, and at least %d on %s", sandboxes, some, h.name)
	}
	return nil
}

// through runs a command of the CLI with a router.
func (h *host) through(ctx context.Context, router string, args ...string) (string, error) {
	return h.run(h.command(ctx, args...), "FORKD_MACHINE=", "FORKD_URL="+router, "FORKD_TOKEN="+h.token)
}

// freeAddress returns an address of 127.0.0.1 with a port that nothing uses.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// startRouter starts `forkd router` with the list that the operator writes, and returns its URL. The
// nodes accept the token of h.
func (c *cluster) startRouter(ctx context.Context, h *host) (string, error) {
	list, err := c.list(ctx)
	if err != nil {
		return "", err
	}
	address, err := freeAddress()
	if err != nil {
		return "", err
	}
	cmd := h.command(ctx, "router", "--nodes", list, "--bind", address)
	cmd.Stderr = os.Stderr
	if err := c.start(cmd); err != nil {
		return "", err
	}
	router, err := client.New("http://"+address, h.token)
	if err != nil {
		return "", err
	}
	defer router.Close()
	for range 300 {
		if _, err = router.Snapshot(ctx, snapshot); err == nil {
			return "http://" + address, nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return "", fmt.Errorf("the router does not find the snapshot: %w", err)
}
