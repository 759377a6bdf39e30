package view

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// TestActions starts the actions of a sandbox with the keyboard only. Each dialog shows the command
// line and the calls that do the same.
func TestActions(t *testing.T) {
	r := startRig(t)
	r.fork("base", 1, map[string]string{"name": "other"}) // to be promoted
	id := r.fork("base", 1, map[string]string{"name": "box"})[0]
	p := newBrowser(t)
	p.open(startView(t, r.URL, r.Token))
	p.waitText("box")
	p.do("search", focus("[type=search]"), chromedp.KeyEvent("box"))
	p.wait(`document.querySelectorAll("[role=treeitem]").length === 2`)
	p.do("choose the sandbox", focus("[role=tree]"), chromedp.KeyEvent(kb.End))
	p.wait(`document.querySelector(".row.selected .name")?.textContent === "box"`)

	for key, want := range map[string]struct{ title, cli, python, typescript string }{
		// chromedp also sends a key to the dialog that the key opens, so the values of its field
		// vary.
		"f": {"Fork box", "forkd fork --from-sandbox " + id + " -n ", "sandbox.fork(", "await sandbox.fork("},
		"b": {"Branch box", "forkd branch " + id + " b", `sandbox.branch(tag="b`,
			`await sandbox.branch(0, { tag: "b`},
		"r": {"Roll back box", "forkd rollback " + id + " --to base", `sandbox.rollback("base")`,
			`await sandbox.rollback("base")`},
		"m":       {"Promote into box", "forkd promote ", "sandbox.promote(", "await sandbox.promote("},
		"p":       {"Pause box", "forkd pause " + id, "sandbox.pause()", "await sandbox.pause()"},
		"s":       {"Suspend box", "forkd suspend " + id, "sandbox.suspend()", "await sandbox.suspend()"},
		"l":       {"Labels of box", "forkd ", "sandbox.", "await sandbox."},
		kb.Delete: {"Kill box", "forkd kill " + id, "sandbox.kill()", "await sandbox.kill()"},
	} {
		p.ask(key, want.title)
		for language, call := range map[string]string{"Shell": want.cli, "Python": want.python,
			"TypeScript": want.typescript} {
			p.click("dialog .calls", language)
			p.wait(`[...document.querySelectorAll("dialog .calls button")].some((b) =>
				b.textContent === "` + language + `" && b.getAttribute("aria-pressed") === "true")`)
			if got := eval[string](p, `document.querySelector("dialog .calls pre").textContent`); !strings.Contains(got, call) {
				t.Errorf("%s: the call in %s is %q, want %q", want.title, language, got, call)
			}
		}
		p.do("close the dialog", chromedp.KeyEvent(kb.Escape))
		p.wait(`document.querySelector("dialog") === null`)
	}

	state := func(want string) {
		t.Helper()
		p.wait(`document.querySelector(".row.selected .state")?.textContent === "` + want + `"`)
	}
	for _, step := range [][3]string{{"p", "Pause box", "paused"}, {"p", "Resume box", "running"},
		{"s", "Suspend box", "suspended"}, {"s", "Resume box", "running"}} {
		p.ask(step[0], step[1])
		p.do("confirm", chromedp.KeyEvent(kb.Enter))
		state(step[2])
	}
	p.ask("l", "Labels of box")
	p.eval(`document.activeElement.select()`) // chromedp also sends the "l" to the dialog
	p.do("rename", chromedp.KeyEvent("name"), chromedp.KeyEvent(kb.Tab))
	p.eval(`document.activeElement.select()`)
	p.do("rename", chromedp.KeyEvent("box of another name"), chromedp.KeyEvent(kb.Enter))
	p.wait(`document.querySelector(".row.selected .name")?.textContent === "box of another name"`)
	p.ask(kb.Delete, "Kill box of another name")
	p.do("choose the button", chromedp.KeyEvent(kb.Tab)) // Enter alone must not kill
	p.wait(`document.activeElement.textContent === "Kill"`)
	p.do("confirm", chromedp.KeyEvent(kb.Enter))
	p.wait(`document.querySelectorAll("[role=treeitem]").length === 0`)
	if list := p.sandboxes(r); len(list) != 1 || list[0].ID == id {
		t.Errorf("the daemon has the sandboxes %v", list)
	}
	p.clean(statsOfEnded)
}

// ask presses a key in the tree, and waits for the dialog with a title.
func (p *page) ask(key, title string) {
	p.t.Helper()
	p.wait(`document.querySelector("dialog") === null`)
	p.do("press "+key, focus("[role=tree]"), chromedp.KeyEvent(key))
	p.wait(`document.querySelector("dialog[open] h2")?.textContent === ` + quoted(title))
}
