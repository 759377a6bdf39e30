package view

import (
	_ "embed"
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// axe is the package axe-core 4.14.1 from npm. It finds obstacles for people with disabilities.
//
//go:embed testdata/axe.min.js
var axe string

// TestAccessibility checks every page of the view with axe, in both themes.
func TestAccessibility(t *testing.T) {
	r := startRig(t)
	story(r)
	v := startView(t, r.URL, r.Token)
	p := newBrowser(t)
	p.open(v)
	id := eval[string](p, `document.querySelector(".facts dd:nth-of-type(2)").textContent`)
	for _, theme := range []string{"light", "dark"} {
		p.theme(theme)
		p.page("#/", `document.querySelectorAll(".row .meter").length >= 3`)
		p.accessible(theme + " tree")
		p.do("open a dialog", focus("[role=tree]"), chromedp.KeyEvent("b"))
		p.wait(`document.querySelector("dialog[open]")`)
		p.accessible(theme + " dialog")
		p.do("close it", chromedp.KeyEvent(kb.Escape))
		p.wait(`document.querySelector("dialog") === null`)
		p.page("#/host", `document.querySelectorAll(".card dd").length > 5 && document.querySelectorAll("canvas").length === 5 &&
			document.querySelector(".findings")?.innerText.includes("other checks")`)
		p.eval(`document.querySelector(".findings").open = true`)
		p.accessible(theme + " host")
		p.page("#/diff/python-numpy/tests-pass", `document.querySelector(".file-diff")`)
		p.accessible(theme + " diff")
		for tab, ready := range map[string]string{"terminal": `.xterm-rows`, "code": `#code`, "files": `td`,
			"processes": `.calls`, "console": `.output`, "network": `.facts`, "ports": `#port`, "metrics": `canvas`} {
			p.page("#/sandbox/"+id+"/"+tab, `document.querySelector("`+ready+`")`)
			p.accessible(theme + " " + tab)
		}
	}
	p.clean(statsOfEnded)
}

// page goes to a page of the view, and waits until a JavaScript expression is true.
func (p *page) page(hash, ready string) {
	p.t.Helper()
	p.eval(fmt.Sprintf(`location.hash = %q`, hash))
	p.wait(ready)
}

// accessible fails the test if axe finds a violation in the page.
func (p *page) accessible(name string) {
	p.t.Helper()
	if !eval[bool](p, `window.axe !== undefined`) {
		p.eval(axe)
	}
	found := eval[[]string](p, `axe.run(document, {resultTypes: ["violations"]}).then((r) => r.violations.map((v) =>
		v.id + ": " + v.nodes.slice(0, 3).map((n) => n.target.join(" ") + " " + n.failureSummary).join("; ")))`)
	for _, violation := range found {
		p.t.Errorf("%s: %s", name, violation)
	}
}
