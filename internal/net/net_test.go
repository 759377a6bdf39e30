package net

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/net/flowlog"
	"github.com/forkd/forkd/internal/net/guesttest"
	"github.com/forkd/forkd/internal/net/nettest"
	"github.com/forkd/forkd/internal/net/stack"
	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/ctlsock"
	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// asProcess is the name under which the test binary runs as forkd-net.
const asProcess = "forkd-net"

func TestMain(m *testing.M) {
	if os.Args[0] == asProcess {
		os.Exit(Main())
	}
	os.Exit(nettest.Run(m))
}

const web = "93.184.216.34"

// daemon is the daemon's end of a control connection.
type daemon struct {
	t    testing.TB
	conn *ctlsock.Conn
}

func connect(t testing.TB, path string) *daemon {
	t.Helper()
	conn, err := ctlsock.Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &daemon{t, conn}
}

// start runs a server in this process and connects to it.
func start(t testing.TB) *daemon {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	listener, err := ctlsock.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(listener) })
	s, err := newServer(stack.NewHost(10000), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	d := connect(t, path)
	conn, err := ctlsock.Accept(listener)
	if err != nil {
		t.Fatal(err)
	}
	go s.serve(conn)
	return d
}

// request sends a request and returns the body of its answer, or the error.
func (d *daemon) request(kind netproto.Kind, m codec.Message, fds ...int) ([]byte, error) {
	d.t.Helper()
	var w codec.Writer
	if m != nil {
		m.Append(&w)
	}
	if err := d.conn.Send(kind, w.Bytes(), fds...); err != nil {
		d.t.Fatal(err)
	}
	answer, body, _, err := d.conn.Receive()
	if err != nil {
		d.t.Fatal(err)
	}
	if answer == netproto.KindError {
		var e netproto.Error
		if err := e.Parse(codec.NewReader(body)); err != nil {
			d.t.Fatal(err)
		}
		return nil, &e
	}
	return body, nil
}

func (d *daemon) must(kind netproto.Kind, m codec.Message, fds ...int) []byte {
	d.t.Helper()
	body, err := d.request(kind, m, fds...)
	if err != nil {
		d.t.Fatal(err)
	}
	return body
}

func (d *daemon) attach(id string, file *os.File, p netproto.Policy) {
	d.t.Helper()
	d.must(netproto.KindAttach, &netproto.Attach{ID: id, Policy: p}, int(file.Fd()))
	_ = file.Close()
}

func (d *daemon) list() (ids []string) {
	var list netproto.List
	if err := list.Parse(codec.NewReader(d.must(netproto.KindList, nil))); err != nil {
		d.t.Fatal(err)
	}
	return list.IDs
}

func (d *daemon) stats(id string) (m netproto.Stats) {
	if err := m.Parse(codec.NewReader(d.must(netproto.KindStats, &netproto.ID{ID: id}))); err != nil {
		d.t.Fatal(err)
	}
	return m
}

func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func get(ctx context.Context, g *guesttest.Guest, url string) (string, error) {
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, addr string) (net.Conn,
		error) {
		c, err := g.DialTCP(ctx, netip.MustParseAddrPort(addr))
		if err != nil {
			return nil, err
		}
		return c, nil
	}, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func serveHello(t testing.TB, w *nettest.World) {
	t.Helper()
	go http.Serve(w.Listen(t, web+":80"), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "hello")
	}))
}

// TestSandbox follows a sandbox from Attach to Detach. The guest fetches a page and is refused
// another page. Both connections are counted and logged. Then the sandbox receives a new policy.
func TestSandbox(t *testing.T) {
	w := nettest.New(t, web, "10.1.2.3")
	serveHello(t, w)
	d := start(t)
	path := filepath.Join(t.TempDir(), "flows")
	log, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	d.must(netproto.KindConfig, &netproto.Config{}, int(log.Fd()))
	_ = log.Close()
	g, file := guesttest.New(t)
	d.attach("sb-1", file, netproto.Public())
	if m := d.stats("sb-1"); m.Active {
		t.Errorf("a stack before the first frame: %+v", m)
	}
	if got, err := get(t.Context(), g, "http://"+web+"/"); got != "hello" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := get(t.Context(), g, "http://10.1.2.3/"); err == nil {
		t.Errorf("a private address answered %q", got)
	}
	waitFor(t, "counters", func() bool {
		m := d.stats("sb-1")
		recent, passed := m.Recent, m.Passed
		m.Recent, m.Passed = nil, nil // the sum over all sandboxes has no recent destinations
		return len(recent) == 1 && recent[0].Address == "10.1.2.3:80" && len(passed) == 1 &&
			passed[0].Address == "93.184.216.34:80" && passed[0].DownBytes == m.DownBytes && passed[0].Count == 1 &&
			m.Active && m.Open == 0 && m.Connections == 1 && m.DownBytes > 5 && m.UpBytes > 16 &&
			reflect.DeepEqual(m.Refused, []netproto.Refusals{{Reason: "private", Count: 1}}) && reflect.DeepEqual(m, d.stats(""))
	})
	d.must(netproto.KindSetPolicy, &netproto.SetPolicy{ID: "sb-1", Policy: netproto.Policy{Mode: netproto.ModeNone}})
	if got, err := get(t.Context(), g, "http://"+web+"/"); err == nil {
		t.Errorf("under mode none the answer was %q", got)
	}
	if ids := d.list(); !reflect.DeepEqual(ids, []string{"sb-1"}) {
		t.Errorf("%q", ids)
	}
	d.must(netproto.KindDetach, &netproto.ID{ID: "sb-1"})
	if ids := d.list(); len(ids) != 0 {
		t.Errorf("after detach: %q", ids)
	}
	waitFor(t, "its counters in the sum", func() bool { m := d.stats(""); return m.Connections == 1 && !m.Active })
	checkLog(t, path)
}

func checkLog(t *testing.T, path string) {
	t.Helper()
	var records []flowlog.Record
	waitFor(t, "three lines in the flow log", func() bool {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		records = nil
		for line := range bytes.Lines(text) {
			var r flowlog.Record
			if err := json.Unmarshal(line, &r); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			records = append(records, r)
		}
		return len(records) == 3
	})
	got := map[string]bool{}
	for _, r := range records {
		got[strings.Join([]string{r.Sandbox, r.Verdict, r.Reason, r.Address, r.Protocol}, " ")] = true
	}
	for _, want := range []string{"sb-1 pass mode 93.184.216.34:80 tcp", "sb-1 refuse private 10.1.2.3:80 tcp",
		"sb-1 refuse mode-none 93.184.216.34:80 tcp"} {
		if !got[want] {
			t.Errorf("no line says %q: %+v", want, records)
		}
	}
}

// A sandbox that has sent nothing costs a descriptor and a record, but no goroutine.
func TestIdleSandboxesHaveNoGoroutines(t *testing.T) {
	d := start(t)
	var files []*os.File
	before := runtime.NumGoroutine()
	for i := range 300 {
		mine, theirs := guesttest.Pair(t)
		defer mine.Close()
		files = append(files, mine)
		d.attach(fmt.Sprintf("sb-%d", i), theirs, netproto.Public())
	}
	if n := runtime.NumGoroutine() - before; n > 0 {
		t.Errorf("%d goroutines for %d idle sandboxes", n, len(files))
	}
	if n := len(d.list()); n != len(files) {
		t.Errorf("%d sandboxes", n)
	}
	for _, f := range files {
		_ = f.Close()
	}
	waitFor(t, "sandboxes end with their sockets", func() bool { return len(d.list()) == 0 })
}

// IPv6 frames, which guests send by themselves, do not create a stack. One goroutine handles such
// frames for all sandboxes. If a guest sends too many of them, a stack is created for its sandbox,
// so that the guest cannot keep this goroutine busy.
func TestFramesThatNeedNoStack(t *testing.T) {
	d := start(t)
	mine, theirs := guesttest.Pair(t)
	defer mine.Close()
	d.attach("sb-1", theirs, netproto.Public())
	m := guesttest.Frame(make([]byte, 60))
	m[frame.HeaderBytes+12], m[frame.HeaderBytes+13] = 0x86, 0xdd
	for range patience {
		if _, err := mine.Write(m); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, "they are dropped", func() bool { return d.stats("sb-1").Dropped == patience })
	if d.stats("sb-1").Active {
		t.Error("there is a stack")
	}
	if _, err := mine.Write(m); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "a stack", func() bool { return d.stats("sb-1").Active })
}

// When a sandbox ends, its stack frees all resources.
func TestEndedStacksLeaveNothing(t *testing.T) {
	w := nettest.New(t, web)
	serveHello(t, w)
	d := start(t)
	use := func(id string) {
		g, file := guesttest.New(t)
		d.attach(id, file, netproto.Public())
		if got, err := get(t.Context(), g, "http://"+web+"/"); got != "hello" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
		g.Die()
		waitFor(t, "the sandbox ends with its socket", func() bool { return len(d.list()) == 0 })
		g.Stop()
	}
	use("first") // starts goroutines that never end
	before := runtime.NumGoroutine()
	for i := range 5 {
		use(fmt.Sprint(i))
	}
	waitFor(t, "goroutines end", func() bool { return runtime.NumGoroutine() <= before })
}

func TestRequestsThatAreRefused(t *testing.T) {
	d := start(t)
	for name, c := range map[string]struct {
		kind netproto.Kind
		m    codec.Message
		code netproto.Code
	}{
		"another version": {netproto.KindHello, &netproto.Hello{Version: netproto.Version + 1}, netproto.CodeVersion},
		"an unknown sandbox": {netproto.KindSetPolicy, &netproto.SetPolicy{ID: "x", Policy: netproto.Public()},
			netproto.CodeUnknown},
		"stats of an unknown":   {netproto.KindStats, &netproto.ID{ID: "x"}, netproto.CodeUnknown},
		"effects of an unknown": {netproto.KindEffects, &netproto.ID{ID: "x"}, netproto.CodeUnknown},
		"no descriptor": {netproto.KindAttach, &netproto.Attach{ID: "x", Policy: netproto.Public()},
			netproto.CodeInvalid},
		"no body":            {netproto.KindAttach, nil, netproto.CodeInvalid},
		"an unknown request": {99, nil, netproto.CodeInvalid},
	} {
		if _, err := d.request(c.kind, c.m); !netproto.IsCode(err, c.code) {
			t.Errorf("%s: %v, want code %d", name, err, c.code)
		}
	}
	d.must(netproto.KindHello, &netproto.Hello{Version: netproto.Version})
	d.must(netproto.KindDetach, &netproto.ID{ID: "x"})
}

func TestServerThatIsAloneEnds(t *testing.T) {
	s, err := newServer(stack.NewHost(10), time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	<-s.lonely
	s.count(1)
	s.count(-1)
	<-s.lonely
}

// An invalid authority is refused, and the error does not quote its key.
func TestTrustIsChecked(t *testing.T) {
	d := start(t)
	for _, m := range []netproto.Trust{{}, {Certificate: []byte("x"), Key: "s3cr3t"}} {
		if _, err := d.request(netproto.KindTrust, &m); !netproto.IsCode(err, netproto.CodeInvalid) ||
			strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%v", err)
		}
	}
}
