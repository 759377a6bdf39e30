package integration_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/forkd/forkd/client"
)

// netCode has the functions with which guests of these tests use the network.
const netCode = `
import hashlib, socket, threading
def fetch(host, port, timeout=60):
    try:
        s = socket.create_connection((host, port), timeout=timeout)
        s.sendall(b"GET /file HTTP/1.0\r\nHost: x\r\n\r\n")
        f, h = s.makefile("rb"), hashlib.sha256()
        if b" 200 " not in f.readline():
            return "status"
        while f.readline().strip():
            pass
        while True:
            p = f.read(65536)
            if not p:
                return h.hexdigest()
            h.update(p)
    except OSError as e:
        return type(e).__name__
def begin(*args):
    global worker
    worker = threading.Thread(target=lambda: setattr(worker, "got", fetch(*args)), daemon=True)
    worker.start()
def fetched():
    worker.join()
    return worker.got
def dial(host, port):
    global c
    c = socket.create_connection((host, port), timeout=60)
    return echo()
def echo(what=b"hello"):
    try:
        c.sendall(what)
        got = c.recv(100)
        return "ok" if got == what else "end" if not got else "other"
    except OSError as e:
        return type(e).__name__
`

// online(t, n, network) forks n sandboxes and runs netCode in each sandbox.
func (d *daemon) online(t *testing.T, n int, network client.Network) []client.Sandbox {
	t.Helper()
	r, err := d.Fork(d.ctx(t, bakeLimit), client.ForkRequest{SnapshotTag: tag, N: n, Network: &network})
	if err != nil {
		t.Fatal(err)
	}
	d.each(t, r.Sandboxes, func(s client.Sandbox) {
		if e, err := d.Eval(d.ctx(t, bakeLimit), s.ID, client.EvalRequest{Code: netCode, TimeoutSecs: 120}); err != nil ||
			e.Error != "" {
			t.Errorf("sandbox %s: %+v, %v", s.ID, e, err)
		}
	})
	return r.Sandboxes
}

// each calls f for all sandboxes, a few at a time. If more guests shared an emulated CPU, their
// interpreters would not answer within the agent's time limit.
func (d *daemon) each(t *testing.T, list []client.Sandbox, f func(client.Sandbox)) {
	t.Helper()
	var group sync.WaitGroup
	places := make(chan struct{}, 4)
	for _, s := range list {
		group.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			f(s)
		})
	}
	group.Wait()
}

// call calls a function of netCode in a sandbox and returns the result as plain text.
func (d *daemon) call(t *testing.T, id, format string, args ...any) string {
	t.Helper()
	code := fmt.Sprintf(format, args...)
	e, err := d.Eval(d.ctx(t, bakeLimit), id, client.EvalRequest{Code: code, TimeoutSecs: 240})
	if err != nil || e.Result == nil {
		t.Errorf("%s: %+v, %v", code, e, err)
		return ""
	}
	return strings.Trim(*e.Result, "'")
}

// metric returns the value of a metric without labels.
func (d *daemon) metric(t *testing.T, name string) float64 {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(d.run, "forkd.sock"))
	}}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Get("http://forkd/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

// TestNetworkPolicy checks that a child can connect only to the server that its policy allows. A
// change of the policy applies at once, even to open connections.
func TestNetworkPolicy(t *testing.T) {
	flows := filepath.Join(t.TempDir(), "flows")
	d := load(t).start(t, withChecks, func(d *daemon) { d.args = []string{"--flow-log", flows} })
	allowed, other, echo := serveFile(t, 100<<10), serveFile(t, 1000), serveEcho(t)
	box := d.online(t, 1, client.Network{Mode: "allow", Allow: []string{allowed.address, echo.address}})[0]
	if box.Network != "allow" {
		t.Errorf("the sandbox says that its mode is %q", box.Network)
	}
	if got := d.call(t, box.ID, "fetch(%s)", allowed.of()); got != allowed.sum {
		t.Fatalf("fetch from the allowed server: %s", got)
	}
	if got := d.call(t, box.ID, "fetch(%s)", other.of()); got != "ConnectionRefusedError" {
		t.Errorf("fetch from another server: %s", got)
	}
	if got := d.call(t, box.ID, "dial(%s)", echo.of()); got != "ok" {
		t.Fatalf("dial: %s", got)
	}
	n, err := d.Network(d.ctx(t, quietLimit), box.ID)
	if err != nil || n.Stats.Open != 1 || n.Stats.Connections < 1 || n.Stats.DownBytes < 100<<10 ||
		len(n.Stats.Refused) == 0 {
		t.Errorf("%+v, %v", n, err)
	}
	if _, err := d.SetNetwork(d.ctx(t, quietLimit), box.ID, client.Network{Mode: "allow",
		Allow: []string{other.address}}); err != nil {
		t.Fatal(err)
	}
	if got := d.call(t, box.ID, "echo()"); got != "ConnectionResetError" && got != "BrokenPipeError" {
		t.Errorf("a connection that the new policy does not let through: %s", got)
	}
	if got := d.call(t, box.ID, "fetch(%s)", allowed.of()); got != "ConnectionRefusedError" {
		t.Errorf("fetch from the server that was allowed: %s", got)
	}
	if got := d.call(t, box.ID, "fetch(%s)", other.of()); got != other.sum {
		t.Errorf("fetch from the server that is allowed now: %s", got)
	}
	for _, mode := range []string{"none", "public", "open"} { // each of these modes denies the host's own addresses
		if _, err := d.SetNetwork(d.ctx(t, quietLimit), box.ID, client.Network{Mode: mode}); err != nil {
			t.Fatal(err)
		}
		if got := d.call(t, box.ID, "fetch(%s, 5)", other.of()); got != "ConnectionRefusedError" {
			t.Errorf("mode %s: fetch from the host: %s", mode, got)
		}
	}
	d.kill(t, box)
	eventually(t, quietLimit, func() error { return checkFlows(flows, box.ID, allowed, other) })
}

// checkFlows checks that the flow log has the expected lines of TestNetworkPolicy.
func checkFlows(name, id string, allowed, other server) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	seen := make(map[string]bool)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var flow struct {
			Sandbox, Verdict, Reason, Address string
		}
		if err := json.Unmarshal(lines.Bytes(), &flow); err != nil {
			return fmt.Errorf("%s: %w", lines.Text(), err)
		}
		if flow.Sandbox == id && flow.Reason != "" {
			seen[flow.Verdict+" "+flow.Address] = true
		}
	}
	for _, want := range []string{"pass " + allowed.address, "refuse " + other.address, "pass " + other.address} {
		if !seen[want] {
			return fmt.Errorf("the flow log has no %q: %v", want, seen)
		}
	}
	return nil
}

// TestBranchWithOpenConnections checks that the source of a branch keeps its connections. A child
// finds its copies of these connections reset, and can make new ones. A rollback resets the
// connections of the sandbox.
func TestBranchWithOpenConnections(t *testing.T) {
	d := load(t).start(t)
	defer d.removeBranches(t)
	echo := serveEcho(t)
	source := d.online(t, 1, client.Network{Mode: "allow", Allow: []string{echo.address}})[0]
	if got := d.call(t, source.ID, "dial(%s)", echo.of()); got != "ok" {
		t.Fatalf("dial: %s", got)
	}
	d.branchOf(t, source.ID, "online", "live")
	children := d.forkOf(t, "online", 2)
	for _, c := range children {
		if c.Network != "allow" {
			t.Errorf("a child of the branch has mode %q", c.Network)
		}
		if got := d.call(t, c.ID, "echo()"); got == "ok" || got == "timeout" || got == "TimeoutError" {
			t.Errorf("the connection in a child: %s", got)
		}
		if got := d.call(t, c.ID, "dial(%s)", echo.of()); got != "ok" {
			t.Errorf("a new connection in a child: %s", got)
		}
	}
	if got := d.call(t, source.ID, "echo()"); got != "ok" {
		t.Errorf("the connection in the source: %s", got)
	}
	if _, err := d.Rollback(d.ctx(t, bakeLimit), source.ID, "online"); err != nil {
		t.Fatal(err)
	}
	if got := d.call(t, source.ID, "echo()"); got == "ok" || got == "timeout" || got == "TimeoutError" {
		t.Errorf("the connection after a rollback: %s", got)
	}
	if got := d.call(t, source.ID, "dial(%s)", echo.of()); got != "ok" {
		t.Errorf("a new connection after a rollback: %s", got)
	}
	d.kill(t, append(children, source)...)
}

// TestForkdNetKilledUnderLoad kills forkd-net during transfers. Connections are reset, and there
// are no other effects. The metrics count the restart.
func TestForkdNetKilledUnderLoad(t *testing.T) {
	d := load(t).start(t)
	file := serveFile(t, 64<<20) // so large that it is still being transferred when forkd-net is killed
	boxes := d.online(t, 3, client.Network{Mode: "allow", Allow: []string{file.address}})
	before := d.processes(t, "forkd-net")
	if len(before) != 1 {
		t.Fatalf("forkd-net processes: %v", before)
	}
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		eventually(t, quietLimit, func() error {
			n, err := d.Network(d.ctx(t, quietLimit), boxes[0].ID)
			if err == nil && n.Stats.Open == 0 {
				err = fmt.Errorf("there is no connection")
			}
			return err
		})
		pid, _ := strconv.Atoi(before[0])
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}()
	d.each(t, boxes, func(s client.Sandbox) {
		if got := d.call(t, s.ID, "fetch(%s)", file.of()); got == file.sum || got == "TimeoutError" {
			t.Errorf("the download while forkd-net was killed: %s", got)
		}
	})
	<-killed
	small := serveFile(t, 100<<10)
	for _, s := range boxes {
		if _, err := d.SetNetwork(d.ctx(t, quietLimit), s.ID, client.Network{Mode: "allow",
			Allow: []string{small.address}}); err != nil {
			t.Fatal(err)
		}
	}
	d.each(t, append(boxes, d.online(t, 1, client.Network{Mode: "allow", Allow: []string{small.address}})...),
		func(s client.Sandbox) {
			if got := d.call(t, s.ID, "fetch(%s)", small.of()); got != small.sum {
				t.Errorf("after forkd-net was started again: %s", got)
			}
			d.alive(t, s.ID)
		})
	if n := d.metric(t, "forkd_net_restarts_total"); n != 1 {
		t.Errorf("%v restarts are counted", n)
	}
	if after := d.processes(t, "forkd-net"); len(after) != 1 || after[0] == before[0] {
		t.Errorf("forkd-net is %v, was %v", after, before)
	}
}

// TestNetworkOutlivesTheDaemon checks that connections continue when the daemon is killed.
func TestNetworkOutlivesTheDaemon(t *testing.T) {
	d := load(t).start(t)
	echo := serveEcho(t)
	box := d.online(t, 1, client.Network{Mode: "allow", Allow: []string{echo.address}})[0]
	if got := d.call(t, box.ID, "dial(%s)", echo.of()); got != "ok" {
		t.Fatalf("dial: %s", got)
	}
	d.crash(t)
	d.launch(t)
	if got := d.call(t, box.ID, "echo()"); got != "ok" {
		t.Errorf("the connection after the daemon's death: %s", got)
	}
	if n, err := d.Network(d.ctx(t, quietLimit), box.ID); err != nil || n.Mode != "allow" || n.Stats.Open != 1 {
		t.Errorf("%+v, %v", n, err)
	}
	if _, err := d.SetNetwork(d.ctx(t, quietLimit), box.ID, client.Network{Mode: "none"}); err != nil {
		t.Fatal(err)
	}
	if got := d.call(t, box.ID, "echo()"); got == "ok" {
		t.Error("the connection outlives the policy")
	}
	d.kill(t, box)
}
