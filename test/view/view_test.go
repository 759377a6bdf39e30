package view

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// TestMainPath opens the address of the view, forks a snapshot, runs a command in the terminal,
// branches, reloads, and compares. If the page has keys for an action, the test uses only the
// keyboard.
func TestMainPath(t *testing.T) {
	r := startRig(t)
	v := startView(t, r.URL, r.Token)
	p := newBrowser(t)
	// Like the file that 'forkd ui' opens, this file leads to the address of the view. It belongs
	// to another site.
	from := filepath.Join(t.TempDir(), "open.html")
	if err := os.WriteFile(from, []byte(`<meta http-equiv="refresh" content="0; url=`+v.URL+`">`), 0o600); err != nil {
		t.Fatal(err)
	}
	p.do("open the file", chromedp.Navigate("file://"+from))
	p.wait(`document.querySelector("[role=treeitem]")`)

	tree := focus("[role=tree]")
	p.do("choose the snapshot", tree, chromedp.KeyEvent(kb.Home), chromedp.KeyEvent("f"))
	p.wait(`document.querySelector("dialog[open]")`)
	p.eval(`document.activeElement.select()`) // chromedp also sends the "f" to the dialog
	p.do("fork two", chromedp.KeyEvent("2"))
	p.wait(`document.querySelector("dialog pre").textContent === "forkd fork base -n 2"`)
	p.do("confirm", chromedp.KeyEvent(kb.Enter))
	p.wait(`document.querySelectorAll(".icon.sandbox.running").length >= 2`)
	p.wait(`document.querySelectorAll("dialog").length === 0`)

	p.do("open the first sandbox", tree, chromedp.KeyEvent(kb.Home), chromedp.KeyEvent(kb.ArrowDown),
		chromedp.KeyEvent(kb.Enter))
	p.waitText("new shell")
	terminal := `document.querySelector(".xterm-rows").innerText`
	p.wait(`document.querySelector(".xterm-rows") && /[#$]/.test(` + terminal + `)`)
	p.command("X=4; echo ok$((X+2))")
	p.wait(terminal + `.includes("ok6")`)
	p.do("reload", chromedp.Reload())
	p.wait(`document.querySelector(".xterm-rows") && ` + terminal + `.includes("ok6")`)
	p.command("echo again$X")
	p.wait(terminal + `.includes("again4")`) // the same shell, with its variable

	p.eval(`location.hash = "#/"`)
	p.wait(`document.querySelectorAll("[role=treeitem]").length >= 3`)
	p.do("branch the first sandbox", tree, chromedp.KeyEvent(kb.Home), chromedp.KeyEvent(kb.ArrowDown),
		chromedp.KeyEvent(" "), chromedp.KeyEvent("b"))
	p.wait(`document.querySelector("dialog[open]")`)
	p.eval(`document.activeElement.select()`)
	p.do("confirm", chromedp.KeyEvent("milestone"), chromedp.KeyEvent(kb.Enter))
	p.wait(`[...document.querySelectorAll(".row .name")].some((e) => e.textContent === "milestone")`)
	p.wait(`document.querySelectorAll("dialog").length === 0`)
	p.do("mark the branch", tree, chromedp.KeyEvent(kb.ArrowRight), chromedp.KeyEvent(" "))
	p.do("compare", chromedp.Click(chromedp.CSS(".compare a")))
	p.waitText("/srv/a")
	p.waitText("+new")
	p.clean(statsOfEnded)
	p.onlyOwnRequests()
}

// command enters a command into the terminal. The text is inserted as a whole, because a terminal
// would see two keys in the separate events that chromedp sends for one key.
func (p *page) command(text string) {
	p.t.Helper()
	p.do("focus the terminal", focus(".xterm-helper-textarea"))
	if _, err := chromedp.Call(p.ctx, input.InsertText, input.InsertTextParams{Text: text}); err != nil {
		p.fail("type", err)
	}
	p.do("enter", chromedp.KeyEvent(kb.Enter))
}

// onlyOwnRequests checks that the browser has sent requests only to the view.
func (p *page) onlyOwnRequests() {
	p.t.Helper()
	origin := eval[string](p, `location.origin`)
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.requests) < 5 {
		p.t.Errorf("the browser has sent %d requests: there were more", len(p.requests))
	}
	for _, url := range p.requests {
		if !strings.HasPrefix(url, origin+"/") && !strings.HasPrefix(url, "file:") && !strings.HasPrefix(url, "data:") {
			p.t.Errorf("request to another origin: %s", url)
		}
	}
}

// hostile is a text that would change the page if it were not shown as text.
const hostile = `<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>"'>{{7*7}}`

// TestHostileTexts puts hostile markup into every text that a guest or another client chooses.
func TestHostileTexts(t *testing.T) {
	r := startRig(t)
	id := r.fork("base", 1, map[string]string{"name": hostile, "other": hostile})[0]
	dir := filepath.Join(r.Tmp, "hostile\\'; \x03\rtouch x #") // without quotes, no shell takes this name as one word
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	name := strings.ReplaceAll(hostile, "/", "")
	if err := os.WriteFile(filepath.Join(dir, name), []byte(hostile), 0o644); err != nil {
		t.Fatal(err)
	}
	sleep := []string{"sh", "-c", "sleep 60 # " + hostile}
	r.call("POST", "/v1/sandboxes/"+id+"/exec", map[string]any{"args": sleep, "detach": true}, nil)
	v := startView(t, r.URL, r.Token)
	p := newBrowser(t)
	p.open(v)
	p.waitText(hostile)

	p.eval(fmt.Sprintf(`sessionStorage.setItem("dir %s", %q); location.hash = "#/sandbox/%s/files"`, id, dir, id))
	p.waitText(name)
	if shown := eval[string](p, `document.querySelector(".calls pre").textContent`); !strings.HasSuffix(shown, " …") {
		t.Errorf("the command line to copy contains the name of the directory: %q", shown)
	}
	p.do("open the file", chromedp.Click(chromedp.CSS("td button.link")))
	p.wait(`document.querySelector("#editor")?.value === ` + quoted(hostile))
	p.eval(fmt.Sprintf(`location.hash = "#/sandbox/%s/processes"`, id))
	p.waitText("sleep 60 # " + hostile)

	// The result of the code is markup. It is shown in a frame without any rights.
	p.eval(fmt.Sprintf(`location.hash = "#/sandbox/%s/code"`, id))
	p.wait(`document.querySelector("#code")`)
	markup := hostile + `<b id=marker>shown</b><script>parent.hacked=1</script>`
	code := "class H:\n def _repr_html_(self): return " + quoted(markup) + "\nH()"
	p.eval(`{const e = document.querySelector("#code"); e.value = ` + quoted(code) + `; e.dispatchEvent(new InputEvent("input", {bubbles: true})); }`)
	p.do("run", chromedp.Click(chromedp.CSS(".code-form button")))
	p.wait(`document.querySelector(".outputs iframe, .outputs pre")`)
	frame := eval[string](p, `document.querySelector(".outputs iframe")?.getAttribute("sandbox") ?? document.querySelector(".outputs").innerText`)
	if frame != "" {
		t.Errorf("the result is not in a frame without rights: %q", frame)
	}

	if eval[bool](p, `window.hacked !== undefined || document.querySelector("img[src=x]") !== null`) {
		t.Error("the markup of an attacker became a part of the page")
	}
	p.clean(statsOfEnded, "about:srcdoc")
	p.onlyOwnRequests()
}

func quoted(text string) string {
	p, _ := json.Marshal(text) // cannot fail
	return string(p)
}

// TestHostilePages opens pages of another origin in the browser that has a session. These pages
// know the address of the view.
func TestHostilePages(t *testing.T) {
	r := startRig(t)
	v := startView(t, r.URL, r.Token)
	p := newBrowser(t)
	p.open(v)
	p.attack(r)
}

// attack opens pages of other origins, which attack the view that the page p shows.
func (p *page) attack(r *rig) {
	p.t.Helper()
	t := p.t
	base := eval[string](p, `location.origin + location.pathname`)
	before := len(p.sandboxes(r))
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if c := req.Header.Get("Cookie"); c != "" {
			t.Errorf("a server at another port gets the cookie %q", c)
		}
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<!doctype html><title>evil</title><iframe src="%s"></iframe><form method=post target=out action="%sv1/forks"
			enctype="text/plain"><input name='{"snapshot_tag":"base","x":"' value='"}'></form><iframe name=out></iframe>`, base, base)
	}))
	defer evil.Close()
	attacks := map[string]string{
		"fork":   `fetch(%q + "v1/forks", {method: "POST", mode: "no-cors", credentials: "include", body: '{"snapshot_tag":"base"}'})`,
		"header": `fetch(%q + "v1/forks", {method: "POST", credentials: "include", headers: {"Forkd-View": "1"}, body: '{"snapshot_tag":"base"}'})`,
		"read":   `fetch(%q + "v1/sandboxes", {credentials: "include"}).then((r) => r.text())`,
		"script": `new Promise((done, fail) => { const s = document.createElement("script"); s.onload = done; s.onerror = fail; s.src = %q + "main.js"; document.head.append(s) })`,
		"socket": `new Promise((done, fail) => { const s = new WebSocket(%q.replace("http", "ws") + "v1/sandboxes/sb-1/processes/1/attach"); s.onopen = done; s.onerror = fail })`,
	}
	// 127.0.0.1 is the same site as the view, and localhost is another site.
	for _, origin := range []string{evil.URL, strings.Replace(evil.URL, "127.0.0.1", "localhost", 1)} {
		p.do("open the evil page", chromedp.Navigate(origin))
		for name, attack := range attacks {
			got := eval[string](p, `(`+fmt.Sprintf(attack, base)+`).then((v) => v instanceof Response && v.type === "opaque" ? "refused" : "done", () => "refused")`)
			if got != "refused" {
				t.Errorf("%s from %s is %s", name, origin, got)
			}
		}
		p.eval(`document.forms[0].submit()`)
		time.Sleep(300 * time.Millisecond)
		if shown := eval[int](p, `frames.length`); shown != 2 {
			t.Errorf("the evil page has %d frames, want 2", shown)
		}
		if eval[bool](p, `(() => { try { return frames[0].document.body.innerText !== "" } catch { return false } })()`) {
			t.Error("the view is shown in a frame")
		}
	}
	if n := len(p.sandboxes(r)); n != before {
		t.Errorf("there are %d sandboxes, before the attacks there were %d", n, before)
	}
	// The session has survived, and a bookmark works.
	p.do("back to the view", chromedp.Navigate(base), chromedp.WaitVisible(chromedp.CSS(`[role=treeitem]`)))
}

func (p *page) sandboxes(r *rig) (list []struct{ ID string }) {
	r.call("GET", "/v1/sandboxes", nil, &list)
	return list
}

// TestDaemonRestart checks that the page says when the daemon does not answer, and that it receives
// events again after the restart.
func TestDaemonRestart(t *testing.T) {
	r := startRig(t)
	r.fork("base", 1, map[string]string{"name": "survivor"})
	v := startView(t, r.URL, r.Token)
	p := newBrowser(t)
	p.open(v)
	p.waitText("survivor")
	r.call("POST", "/_rig/faults", map[string]any{"restart": map[string]int{"down_ms": 3000}}, nil)
	p.waitText("The daemon does not answer")
	p.wait(`document.querySelector(".link-state.live")`)
	r.fork("base", 1, map[string]string{"name": "newcomer"})
	p.waitText("newcomer")
	p.clean("502", "ERR_")
}

// TestSessionEnds checks the text of the page in two cases: 'forkd ui' has exited, or a new 'forkd
// ui' at the same address does not know the session.
func TestSessionEnds(t *testing.T) {
	r := startRig(t)
	v := startView(t, r.URL, r.Token)
	p := newBrowser(t)
	p.open(v)
	url := eval[string](p, `location.href`)
	v.stop()
	p.waitText("The session has ended")
	p.waitText("forkd ui")
	if strings.Contains(url, "code=") {
		t.Errorf("the address %s still has the code", url)
	}
	second := startView(t, r.URL, r.Token)
	p.do("open a used address", chromedp.Navigate(second.URL), chromedp.WaitVisible(chromedp.CSS(`[role=treeitem]`)),
		chromedp.Navigate(second.URL))
	p.waitText("not valid any more")
}

// manySandboxes is the number of nodes of TestManyNodes.
const manySandboxes = 10_000

// TestManyNodes shows 10,000 sandboxes.
func TestManyNodes(t *testing.T) {
	d := startFakeDaemon(t)
	d.snapshot("base", nil)
	for i := range manySandboxes {
		d.sandbox(fmt.Sprintf("sb-%026d", i), record{"state": "suspended", "created_at_unix": 2 + i,
			"labels": record{"name": fmt.Sprintf("box-%04d", i)}})
	}
	v := startView(t, d.URL, "")
	p := newBrowser(t)
	began := time.Now()
	p.open(v)
	t.Logf("first view after %v", time.Since(began).Round(time.Millisecond))
	p.waitText("10,000 sandboxes")
	if n := eval[int](p, `document.querySelectorAll("[role=treeitem]").length`); n > 60 {
		t.Errorf("the document has %d lines: only those on the screen should be there", n)
	}
	p.do("to the end", focus("[role=tree]"), chromedp.KeyEvent(kb.End))
	p.wait(`document.querySelector(".row.selected")?.textContent.includes("box-9999")`)
	if got := eval[string](p, `document.getElementById(document.querySelector("[role=tree]").getAttribute("aria-activedescendant")).getAttribute("aria-setsize")`); got != "10000" {
		t.Errorf("the last line is one of %s", got)
	}
	p.do("search", chromedp.SendKeys(chromedp.CSS("[type=search]"), "box-4711"))
	p.wait(`document.querySelectorAll("[role=treeitem]").length === 2`)
	p.do("leave the search", focus("[role=tree]"))
	p.palette("box-0815")
	p.wait(option + `?.startsWith("box-0815")`)
	if n := eval[int](p, `document.querySelectorAll("[role=option]").length`); n > 60 {
		t.Errorf("the palette has %d options in the document", n)
	}
	p.do("go to it", chromedp.KeyEvent(kb.Enter))
	p.wait(`document.querySelector(".row.selected")?.textContent.includes("box-0815")`)

	// Events change single nodes, without another list.
	lists := d.count("GET /v1/sandboxes")
	d.change("sandbox.labels", fmt.Sprintf("sb-%026d", 815), record{"labels": record{"name": "renamed"}})
	d.sandbox("sb-new", record{"state": "running", "created_at_unix": 1, "labels": record{"name": "the first"}})
	d.emit("sandbox.created", "sb-new", "base", nil)
	d.remove("sandbox.deleted", fmt.Sprintf("sb-%026d", 816))
	p.wait(`document.querySelector(".row.selected .name")?.textContent === "renamed"`)
	p.waitText("10,000 sandboxes")
	p.do("to the first sandbox", focus("[role=tree]"), chromedp.KeyEvent(kb.Home), chromedp.KeyEvent(kb.ArrowDown))
	p.wait(`document.querySelector(".row.selected .name")?.textContent === "the first"`)
	if now := d.count("GET /v1/sandboxes"); now != lists {
		t.Errorf("the page has listed sandboxes %d times after three events", now-lists)
	}
	p.clean()
}
