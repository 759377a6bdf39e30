package view

import (
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// palette opens the command palette, and types a search.
func (p *page) palette(search string) {
	p.t.Helper()
	p.do("open the palette", chromedp.KeyEvent("k", chromedp.KeyModifiers(chromedp.ModifierCtrl)))
	p.wait(`document.activeElement.getAttribute("role") === "combobox"`)
	if search != "" {
		p.do("search "+search, chromedp.KeyEvent(search))
	}
}

// option is a JavaScript expression for the text of the option that the combobox names as active.
const option = `document.getElementById(document.activeElement.getAttribute("aria-activedescendant"))?.innerText`

// TestPalette uses the command palette with the keyboard only.
func TestPalette(t *testing.T) {
	r := startRig(t)
	story(r)
	v := startView(t, r.URL, r.Token)
	p := newBrowser(t)
	p.open(v)
	p.waitText("try-duckdb")
	for _, theme := range []string{"light", "dark"} {
		p.theme(theme)
		p.palette("")
		p.accessible(theme + " palette")
		p.do("close it", chromedp.KeyEvent(kb.Escape))
		p.wait(`document.querySelector("dialog") === null`)
	}
	p.palette("try-duckdb")
	p.wait(option + `?.startsWith("try-duckdb")`)
	p.do("go to it", chromedp.KeyEvent(kb.Enter))
	p.wait(`document.querySelector(".row.selected .name")?.textContent === "try-duckdb"`)
	p.wait(`document.activeElement.getAttribute("role") === "tree"`)

	// Choose an action on the selected node.
	p.palette("pause")
	p.wait(option + `?.startsWith("Pause")`)
	p.do("choose it", chromedp.KeyEvent(kb.Enter))
	p.wait(`document.querySelector("dialog h2")?.textContent === "Pause try-duckdb"`)
	p.wait(`document.activeElement.type === "submit"`)
	p.do("confirm", chromedp.KeyEvent(kb.Enter))
	p.waitText("try-duckdb is paused")

	// Choose a page with the arrow keys.
	p.palette("page")
	p.do("the second", chromedp.KeyEvent(kb.ArrowDown))
	p.wait(option + `?.startsWith("Time line")`)
	p.do("the third", chromedp.KeyEvent(kb.ArrowDown))
	p.wait(option + `?.startsWith("Host")`)
	p.do("go to it", chromedp.KeyEvent(kb.Enter))
	p.wait(`location.hash === "#/host"`)
	p.palette("no such thing")
	p.waitText("Nothing matches.")
	p.do("nothing happens", chromedp.KeyEvent(kb.Enter))
	p.wait(`document.querySelector("dialog.palette")`)
	p.do("close it", chromedp.KeyEvent(kb.Escape))
	p.wait(`document.querySelector("dialog") === null`)
	p.do("the button", chromedp.Click(chromedp.CSS("header button")))
	p.wait(`document.querySelector("dialog.palette")`)
	p.clean(statsOfEnded)
}

// TestPaletteInTerminal checks that Ctrl-K in a terminal belongs to the shell.
func TestPaletteInTerminal(t *testing.T) {
	r := startRig(t)
	id := r.fork("base", 1, nil)[0]
	v := startView(t, r.URL, r.Token)
	p := newBrowser(t)
	p.open(v)
	p.eval(`location.hash = "#/sandbox/` + id + `"`)
	p.wait(`/[#$]/.test(document.querySelector(".xterm-rows")?.innerText)`)
	p.do("type", focus(".xterm-helper-textarea"), chromedp.KeyEvent("k", chromedp.KeyModifiers(chromedp.ModifierCtrl)))
	p.command("echo ok$((2+4))")
	p.wait(`document.querySelector(".xterm-rows").innerText.includes("ok6")`)
	if eval[bool](p, `document.querySelector("dialog") !== null`) {
		t.Error("Ctrl-K in a terminal opens the palette")
	}
}
