package view

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
)

// centre finds the row of the tree with the given name. It returns the center of the displayed
// name, in the coordinates of the browser window.
func (p *page) centre(name string) (x, y float64) {
	p.t.Helper()
	row := `[...document.querySelectorAll(".row[role=treeitem]")].find((e) => e.querySelector(".name").textContent === ` + quoted(name) + `)`
	p.wait(row)
	at := eval[[]float64](p, `(() => { const r = `+row+`.querySelector(".name").getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2] })()`)
	return at[0], at[1]
}

// drag drags a row of the tree onto another row, with the mouse.
func (p *page) drag(from, to string) {
	p.t.Helper()
	x, y := p.centre(from)
	toX, toY := p.centre(to)
	p.do(fmt.Sprintf("drag %s onto %s", from, to),
		chromedp.MouseEvent("mousePressed", x, y, chromedp.ButtonLeft, chromedp.ClickCount(1)),
		chromedp.MouseEvent("mouseMoved", x+5, y+5, chromedp.ButtonLeft),
		chromedp.MouseEvent("mouseMoved", toX, toY-2, chromedp.ButtonLeft),
		chromedp.MouseEvent("mouseMoved", toX, toY, chromedp.ButtonLeft),
		chromedp.MouseEvent("mouseReleased", toX, toY, chromedp.ButtonLeft, chromedp.ClickCount(1)))
}

// TestDragRollsBack drags a sandbox onto snapshots.
func TestDragRollsBack(t *testing.T) {
	r := startRig(t)
	story(r)
	r.bake("other")
	v := startView(t, r.URL, r.Token)
	p := newBrowser(t)
	p.open(v)
	p.waitText("try-duckdb")
	p.drag("try-duckdb", "other") // has no effect, because the snapshot "other" is of another family
	p.drag("try-duckdb", "try-sqlite")
	p.drag("try-duckdb", "python-numpy")
	p.wait(`document.querySelector("dialog h2")?.textContent === "Roll back try-duckdb"`)
	p.wait(`document.querySelector("dialog .calls pre").textContent.endsWith("--to python-numpy")`)
	p.click("dialog", "Roll back")
	p.waitText("try-duckdb is back at python-numpy")
	p.clean(statsOfEnded)
}

// TestFilters makes the page show only the nodes in one state, and then only the nodes with one
// label.
func TestFilters(t *testing.T) {
	r := startRig(t)
	story(r)
	v := startView(t, r.URL, r.Token)
	p := newBrowser(t)
	p.open(v)
	p.waitText("try-duckdb")
	state := func(name string) {
		p.eval(`{const e = document.querySelector("header select"); e.value = ` + quoted(name) + `; e.dispatchEvent(new Event("change", {bubbles: true})); }`)
	}
	names := `[...document.querySelectorAll(".row[role=treeitem] .name")].map((e) => e.textContent).join()`
	state("paused")
	p.wait(names + ` === "python-numpy,setup,deps-installed,try-pandas"`)
	state("snapshot")
	p.wait(names + `.includes("tests-pass") && !` + names + `.includes("review")`)
	state("")
	p.wait(names + `.includes("review")`)
	if !eval[bool](p, `[...document.querySelectorAll("#words option")].some((e) => e.value === "job=7")`) {
		t.Error("the search suggests no labels")
	}
	p.do("search a label", focus("[type=search]"), chromedp.KeyEvent("job=7"))
	p.wait(`!` + names + `.includes("review") && ` + names + `.includes("try-duckdb")`)
	p.clean(statsOfEnded)
}

// TestOwners checks that the page shows owners as soon as two sandboxes have different owners. It
// searches for the sandboxes of one owner.
func TestOwners(t *testing.T) {
	r := startRig(t)
	r.fork("base", 1, map[string]string{"name": "first"})
	v := startView(t, r.URL, r.Token)
	p := newBrowser(t)
	p.open(v)
	p.waitText("first")
	if eval[bool](p, `document.querySelector(".chip.owner") !== null`) {
		t.Error("the tree shows the only owner")
	}
	team := *r
	team.Token = r.newToken("team")
	team.fork("base", 1, map[string]string{"name": "second"})
	p.wait(`document.querySelectorAll(".chip.owner").length === 2`)
	if !eval[bool](p, `[...document.querySelectorAll("#words option")].some((e) => e.value === "owner=token:team")`) {
		t.Error("the search suggests no owner")
	}
	p.do("search the beginning of an owner", focus("[type=search]"), chromedp.KeyEvent("owner=token:tea"))
	p.wait(`document.querySelectorAll(".row[role=treeitem]").length === 0`)
	p.do("search an owner", chromedp.KeyEvent("m"))
	names := `[...document.querySelectorAll(".row[role=treeitem] .name")].map((e) => e.textContent).join()`
	p.wait(names + ` === "base,second"`)
	p.eval(`[...document.querySelectorAll(".row .name")].find((e) => e.textContent === "second").click()`)
	p.wait(`document.querySelector(".detail .facts").innerText.includes("token:team")`)
	p.accessible("owners")
	p.clean(statsOfEnded)
}
