package view

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// inForks opens the page that runs commands in forks of the sandbox, runs a command, and waits for
// the results.
func (p *page) inForks(command string) {
	p.t.Helper()
	p.wait(`document.querySelector("#command")`)
	p.eval(`{const e = document.querySelector("#command"); e.value = ` + quoted(command) + `; e.dispatchEvent(new InputEvent("input", {bubbles: true})); }`)
	p.do("run", focus("#command"), chromedp.KeyEvent(kb.Enter))
}

// click clicks the button with a text, below an element.
func (p *page) click(in, text string) {
	p.t.Helper()
	found := `[...document.querySelectorAll(` + quoted(in+" button") + `)].find((b) =>
		b.textContent.startsWith(` + quoted(text) + `))`
	p.wait(found)
	p.eval(found + `.click()`)
}

// TestRunInForks runs commands in forks of a sandbox, and chooses which fork stays.
func TestRunInForks(t *testing.T) {
	r := startRig(t)
	id := r.fork("base", 1, map[string]string{"name": "first"})[0]
	v := startView(t, r.URL, r.Token)
	p := newBrowser(t)
	p.open(v)
	p.waitText("first")
	p.do("open the page", focus("[role=tree]"), chromedp.KeyEvent(kb.Home), chromedp.KeyEvent(kb.ArrowDown),
		chromedp.KeyEvent("t"))
	file := filepath.Join(r.Tmp, "hostile")
	if err := os.WriteFile(file, []byte(hostile), 0o644); err != nil {
		t.Fatal(err)
	}
	p.inForks("echo result $FORKD_TRY_INDEX; cat " + file + "; exit $FORKD_TRY_INDEX")
	p.waitText("3 of 3 forks ended, 1 with exit code 0")
	for _, text := range []string{"result 0", "result 1", "result 2", "exit code 2", hostile, "Shell",
		"forkd try " + id + " -n 3 --keep all"} {
		p.waitText(text)
	}
	if eval[bool](p, `window.hacked !== undefined || document.querySelector(".forks img, .forks script") !== null`) {
		t.Error("the output of a command became a part of the page")
	}
	for _, theme := range []string{"light", "dark"} {
		p.theme(theme)
		p.accessible(theme + " forks")
	}
	// The results are still there after the user has looked at the changes of one fork.
	p.do("compare", chromedp.Click(chromedp.CSS(".forks article:nth-of-type(2) a")))
	p.waitText("/srv/a")
	p.eval(`location.hash = "#/try/` + id + `"`)
	p.waitText("3 of 3 forks ended")

	p.click(".forks article:nth-of-type(2)", "Keep only this")
	p.wait(`document.querySelector("dialog .calls pre")?.textContent.startsWith("forkd kill sb-")`)
	p.click("dialog", "Keep")
	p.wait(`document.querySelectorAll(".forks article .actions").length === 1`)
	if n := len(p.sandboxes(r)); n != 2 {
		t.Errorf("there are %d sandboxes, want the first and one fork", n)
	}

	p.inForks("true")
	p.waitText("3 of 3 forks ended, 3 with exit code 0")
	p.click(".forks article:nth-of-type(1)", "Promote")
	p.click("dialog", "Promote")
	p.waitText("goes on as fork 0")
	p.wait(`document.querySelectorAll(".forks article .actions").length === 0`)

	p.inForks("true")
	p.waitText("3 of 3 forks ended, 3 with exit code 0")
	p.click("main", "Keep none")
	p.click("dialog", "Delete")
	p.wait(`document.querySelectorAll(".forks article .actions").length === 0`)
	if n := len(p.sandboxes(r)); n != 2 {
		t.Errorf("there are %d sandboxes, want 2", n)
	}

	// A run that is stopped leaves no fork.
	p.inForks("sleep 600")
	p.wait(`document.querySelectorAll(".forks article").length === 3`)
	p.click("form", "Stop")
	p.waitText("stopped: no fork stays")
	p.eval(`location.hash = "#/"`)
	p.wait(`document.querySelectorAll(".row .icon.sandbox").length === 2`)
	p.clean(statsOfEnded)
}
