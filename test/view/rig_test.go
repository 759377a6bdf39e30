// Package view tests the view of 'forkd ui' in Chromium. The daemon is test/contract/rigd: its VMs
// are fake, and its agents are real processes of this host.
//
// It is a module of its own, so that forkd does not depend on the library that controls the browser.
package view

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// programs is the folder with the programs under test: forkd and rigd.
var programs string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if _, err := exec.LookPath("chromium"); err != nil {
		fmt.Println("SKIP: chromium is missing: install it with 'scripts/setup chromium:chromium'")
		return 0
	}
	dir, err := os.MkdirTemp("", "forkd-view")
	if err != nil {
		log.Print(err)
		return 1
	}
	defer os.RemoveAll(dir)
	programs = dir
	build := exec.Command("go", "build", "-o", dir, "./cmd/forkd", "./test/contract/rigd")
	build.Dir, build.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		log.Printf("build forkd and rigd: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// rig is a daemon with fake VMs.
type rig struct {
	t                                       *testing.T
	URL, Token, Snapshot, Tmp, File, Tokens string
	PID                                     int
}

// startRig starts rigd, which ends with the test.
func startRig(t *testing.T, options ...string) *rig {
	t.Helper()
	r := &rig{t: t}
	start(t, r, exec.Command(filepath.Join(programs, "rigd"), append(options, "-checked=false")...))
	return r
}

// start starts a program, whose first line of output is JSON for v. The program exits at the end of
// its input, or when it is interrupted.
func start(t *testing.T, v any, cmd *exec.Cmd) (stop func()) {
	t.Helper()
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		in.Close()
		_ = cmd.Process.Signal(os.Interrupt) // fails only if it has exited
		_ = cmd.Wait()                       // an interrupted program has an exit code
	})
	t.Cleanup(stop)
	if err := json.NewDecoder(bufio.NewReader(out)).Decode(v); err != nil {
		t.Fatalf("%s: %v", cmd.Path, err)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return stop
}

// call sends a request to the daemon itself.
func (r *rig) call(method, path string, body, answer any) {
	r.t.Helper()
	if err := r.request(method, path, body, answer); err != nil {
		r.t.Fatal(err)
	}
}

// request is like call, but returns the error.
func (r *rig) request(method, path string, body, answer any) error {
	p, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequest(method, r.URL+path, bytes.NewReader(p))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+r.Token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s %s", method, path, resp.Status, text)
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(text, answer)
}

// bake makes a snapshot.
func (r *rig) bake(tag string) {
	r.call("POST", "/v1/snapshots", map[string]any{"tag": tag, "kernel": r.File, "initrd": r.File, "rootfs": r.File}, nil)
}

// fork forks sandboxes from a snapshot or, if an id is given, from a sandbox, and returns their
// ids.
func (r *rig) fork(of string, n int, labels map[string]string) (ids []string) {
	body := map[string]any{"n": n, "snapshot_tag": of}
	if strings.HasPrefix(of, "sb-") {
		body = map[string]any{"n": n, "source_id": of}
	}
	if labels != nil {
		body["labels"] = labels
	}
	var answer struct{ Sandboxes []struct{ ID string } }
	r.call("POST", "/v1/forks", body, &answer)
	for _, s := range answer.Sandboxes {
		ids = append(ids, s.ID)
	}
	return ids
}

// newToken adds a token to the daemon's token file, and returns it.
func (r *rig) newToken(name string) string {
	r.t.Helper()
	cmd := exec.Command(filepath.Join(programs, "forkd"), "token", "new", name, "--scope", "run", "--file", r.Tokens)
	cmd.Stderr = r.t.Output()
	out, err := cmd.Output()
	if err != nil {
		r.t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func (r *rig) branch(id, tag string) {
	r.call("POST", "/v1/sandboxes/"+id+"/branch", map[string]string{"tag": tag}, nil)
}

// view is a running 'forkd ui'.
type view struct {
	URL  string // with a one-time code
	pid  int
	stop func()
}

// startView starts 'forkd ui' for a daemon.
func startView(t *testing.T, url, token string) *view {
	t.Helper()
	v := &view{}
	cmd := exec.Command(filepath.Join(programs, "forkd"), "ui", "--no-open", "-o", "json", "--daemon-url", url)
	cmd.Env = append(os.Environ(), "FORKD_TOKEN="+token, "FORKD_CACHE="+t.TempDir())
	v.stop = start(t, v, cmd)
	v.pid = cmd.Process.Pid
	return v
}

// page is a tab of a browser.
type page struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	problems []string // exceptions and errors in the browser's console
	requests []string // URLs of all requests
	received int      // bytes of all answers
}

// newBrowser starts a browser with one tab.
func newBrowser(t *testing.T) *page {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath("chromium"),
		chromedp.Flag("lang", "en-US"))
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium's sandbox refuses root
	}
	ctx, cancel := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
	t.Cleanup(cancel)
	return newTab(t, ctx)
}

// newTab opens a tab in the browser of ctx, which is started if necessary.
func newTab(t *testing.T, ctx context.Context) *page {
	t.Helper()
	ctx, cancel := chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	p := &page{t: t, ctx: ctx}
	// The browser lives as long as the context of the first call.
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(1280, 800)); err != nil {
		t.Fatal(err)
	}
	if err := chromedp.Listen(ctx, p.note); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *page) note(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		p.problems = append(p.problems, fmt.Sprintf("%s %+v", e.ExceptionDetails.Text, e.ExceptionDetails.Exception))
	case *runtime.EventConsoleAPICalled:
		if e.Type == "error" {
			p.problems = append(p.problems, fmt.Sprintf("console: %+v", e.Args))
		}
	case *cdplog.EventEntryAdded:
		if e.Entry.Level == "error" || e.Entry.Source == "security" {
			p.problems = append(p.problems, e.Entry.Text+" "+e.Entry.URL)
		}
	case *network.EventDataReceived:
		p.received += int(e.DataLength)
	case *network.EventRequestWillBeSent:
		p.requests = append(p.requests, e.Request.URL)
	}
}

// receivedBytes returns the number of bytes of all answers that the page has received.
func (p *page) receivedBytes() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.received
}

var patience = flag.Duration("patience", 30*time.Second, "time limit of one step")

// do(what, actions...) runs actions.
func (p *page) do(what string, actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, *patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		p.fail(what, err)
	}
}

// fail ends the test, and prints the text of the page.
func (p *page) fail(what string, err error) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, 5*time.Second)
	defer cancel()
	text, _ := chromedp.Run(ctx, chromedp.Evaluate[string](`document.body.innerText`)) // for the message only
	p.mu.Lock()
	defer p.mu.Unlock()
	p.t.Fatalf("%s: %v\nproblems: %q\npage:\n%s", what, err, p.problems, text)
}

// open opens the address of a view, and waits for its tree.
func (p *page) open(v *view) {
	p.t.Helper()
	p.do("open the view", chromedp.Navigate(v.URL), chromedp.WaitVisible(chromedp.CSS(`[role=treeitem]`)))
}

// eval returns the value of a JavaScript expression, or of its promise.
func eval[T any](p *page, expression string) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, *patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		p.fail(expression, err)
	}
	return v
}

// focus gives an element the focus. Unlike chromedp.Focus, it needs no copy of the page's tree, which
// lags behind a page that changes.
func focus(selector string) chromedp.Action[chromedp.Void] {
	return chromedp.Evaluate[chromedp.Void](fmt.Sprintf("document.querySelector(%q).focus()", selector))
}

// eval evaluates a JavaScript expression or statement.
func (p *page) eval(expression string) {
	p.t.Helper()
	p.do(expression, chromedp.Evaluate[chromedp.Void](expression, chromedp.EvalAwaitPromise))
}

// wait waits until a JavaScript expression is true. It tries again after an error, because during a
// navigation, the page that evaluates the expression can go away, or have no body yet. The page's
// policy forbids chromedp.Poll, which makes a function from a string.
func (p *page) wait(expression string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, *patience)
	defer cancel()
	for {
		ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("Boolean("+expression+")"))
		if ok {
			return
		}
		select {
		case <-ctx.Done():
			p.fail("wait for "+expression, cmp.Or(err, ctx.Err()))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// waitText waits until the page shows a text.
func (p *page) waitText(text string) {
	p.t.Helper()
	quoted, err := json.Marshal(text)
	if err != nil {
		p.t.Fatal(err)
	}
	p.wait(`document.body.innerText.includes(` + string(quoted) + `)`)
}

// readOfDeleted matches the browser's message for a request of the page for a sandbox or a snapshot that has just
// been deleted. The message may occur in every test.
var readOfDeleted = regexp.MustCompile(`status of 404 .*/v1/(sandboxes/sb-[a-z0-9]+|snapshots/[^/]+/info)$`)

// statsOfEnded is a part of the URLs of requests for figures. They fail if a sandbox has just been
// paused or deleted.
const statsOfEnded = "?max_age_secs="

// clean fails the test if the browser has reported a problem that does not contain one of the
// expected texts.
func (p *page) clean(expected ...string) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, problem := range p.problems {
		known := readOfDeleted.MatchString(problem)
		for _, text := range expected {
			known = known || strings.Contains(problem, text)
		}
		if !known {
			p.t.Errorf("the browser reports: %s", problem)
		}
	}
}
