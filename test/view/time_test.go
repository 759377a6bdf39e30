package view

import (
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// TestRowsShowDiskAndProcessors checks the figures in the row of a sandbox, and the number of requests
// for them.
func TestRowsShowDiskAndProcessors(t *testing.T) {
	d := startFakeDaemon(t)
	d.snapshot("base", nil)
	for _, id := range []string{"sb-a", "sb-b", "sb-c", "sb-d", "sb-e", "sb-f"} {
		d.sandbox(id, record{"created_at_unix": 2})
	}
	d.sandbox("sb-s", record{"created_at_unix": 3, "state": "suspended"})
	v := startView(t, d.URL, "")
	p := newBrowser(t)
	p.open(v)
	began := time.Now()
	row := func(name string) string {
		return `[...document.querySelectorAll(".row[role=treeitem]")].find((e) =>
			e.querySelector(".name").textContent === ` + quoted(name) + `)`
	}
	p.wait(row("sb-f") + `.querySelector(".cpu").textContent === "CPU 25 %"`)
	p.wait(row("sb-f") + `.querySelector(".disk").textContent === "disk 2.0 MiB"`)
	for _, name := range []string{"sb-s", "base"} {
		got := eval[string](p, `["cpu", "disk"].map((c) => `+row(name)+`.querySelector("." + c).textContent).join("")`)
		if got != "" {
			t.Errorf("the row of %s shows %q", name, got)
		}
	}
	p.waitText("Processors in use")
	time.Sleep(7 * time.Second)
	// Each row is measured once, and then at most four in three seconds.
	most := 6 + 4*(1+int(time.Since(began)/(3*time.Second)))
	if n := d.count("GET /v1/sandboxes/{id}/written") + d.count("GET /v1/sandboxes/{id}/stats"); n > most {
		t.Errorf("%d measurements for 6 rows in %v, want at most %d", n, time.Since(began), most)
	}
	p.accessible("rows")
	p.clean()
}

// TestTimeLine checks lanes, links and events of the time line, and its keys.
func TestTimeLine(t *testing.T) {
	d := startFakeDaemon(t)
	now := time.Now().Unix()
	d.snapshot("base", record{"created_at_unix": now - 7200})
	d.sandbox("sb-a", record{"created_at_unix": now - 300, "labels": record{"name": "source"}})
	d.snapshot("mark", record{"created_at_unix": now - 200, "sandbox_id": "sb-a", "branched_from": "base"})
	d.sandbox("sb-b", record{"created_at_unix": now - 100, "snapshot_tag": "mark", "labels": record{"name": hostile}})
	d.sandbox("sb-r", record{"created_at_unix": now - 250, "snapshot_tag": "mark",
		"labels": record{"name": "rolled back"}})
	v := startView(t, d.URL, "")
	p := newBrowser(t)
	p.open(v)
	p.page("#/time", `document.querySelectorAll("rect.lane").length === 4`)
	const names = `[...document.querySelectorAll(".lane-names div")].map((e) => e.textContent).join("|")`
	if got, want := eval[string](p, names), "base|source|rolled back|"+hostile+"|"; got != want {
		t.Errorf("lanes %q, want %q", got, want)
	}
	// A sandbox that was rolled back to a later branch is no fork of that branch.
	p.wait(`document.querySelectorAll("path.link").length === 2`)
	if n := eval[int](p, `document.querySelectorAll("path.point.snapshot").length`); n != 1 {
		t.Errorf("%d branches are drawn, want 1", n)
	}

	d.change("sandbox.paused", "sb-a", record{"state": "paused"})
	d.remove("sandbox.deleted", "sb-b")
	const list = `[...document.querySelectorAll("[role=option]")]`
	p.wait(list + `.slice(0, 2).map((e) => e.querySelector("b").textContent).join() === "sandbox.deleted,sandbox.paused"`)
	p.wait(`document.querySelector("rect.lane.deleted") && document.querySelector("rect.lane.paused")`)
	chosen := `document.querySelector("[role=option][aria-selected=true]")?.innerText ?? ""`
	p.do("choose the newest event", focus("[role=listbox]"), chromedp.KeyEvent(kb.ArrowDown))
	p.wait(`(` + chosen + `).includes("sandbox.deleted")`)
	p.wait(`document.getElementById(document.querySelector("[role=listbox]").getAttribute("aria-activedescendant"))
		.getAttribute("aria-selected") === "true"`)
	p.do("the next one", chromedp.KeyEvent(kb.ArrowDown))
	p.wait(`(` + chosen + `).includes("sandbox.paused")`)
	p.do("the earlier one of its lane", chromedp.KeyEvent(kb.ArrowLeft))
	p.wait(`(` + chosen + `).includes("snapshot.created") && document.querySelector("path.point.chosen")`)
	p.do("back", chromedp.KeyEvent(kb.ArrowRight))
	p.wait(`(` + chosen + `).includes("sandbox.paused")`)
	p.do("the oldest", chromedp.KeyEvent(kb.End))
	p.wait(`(` + chosen + `).includes("sandbox.created")`)

	label := eval[string](p, `document.querySelector(".lanes").getAttribute("aria-label")`)
	if !strings.HasPrefix(label, "4 lanes, ") {
		t.Errorf("the drawing is described as %q", label)
	}
	p.click(".toolbar", "1 minute")
	p.wait(list + `.length === 2`)
	for _, theme := range []string{"light", "dark"} {
		p.theme(theme)
		p.accessible(theme + " time line")
	}
	p.click(".toolbar", "1 day")
	p.wait(`document.querySelectorAll("path.link").length === 1`) // the fork of the deleted sandbox is unknown
	p.do("open the sandbox of an event", focus("[role=listbox]"), chromedp.KeyEvent(kb.Home),
		chromedp.KeyEvent(kb.ArrowDown), chromedp.KeyEvent(kb.Enter))
	p.wait(`location.hash === "#/sandbox/sb-a"`)
	if eval[bool](p, `window.hacked !== undefined || document.querySelector("img[src=x]") !== null`) {
		t.Error("a name became an element of the page")
	}
	p.clean("404", statsOfEnded)
}

// TestStreamIsCutWithinAnEvent cuts the stream between the id and the data of an event. The page must
// get this event from its next stream.
func TestStreamIsCutWithinAnEvent(t *testing.T) {
	d, p := openTree(t)
	p.shows("base snapshot", "  sb-a running")
	lists := d.count("GET /v1/sandboxes")
	d.mu.Lock()
	d.cut = len(d.events) + 1
	d.mu.Unlock()
	d.change("sandbox.paused", "sb-a", record{"state": "paused"})
	p.shows("base snapshot", "  sb-a paused")
	d.change("sandbox.running", "sb-a", record{"state": "running"})
	p.shows("base snapshot", "  sb-a running")
	if n := d.count("continue"); n == 0 {
		t.Error("the page has not continued its stream")
	}
	if n := d.count("GET /v1/sandboxes"); n != lists {
		t.Errorf("the page has listed the sandboxes %d times: the events were enough", n-lists)
	}
	p.clean("ERR_")
}

// TestPageThatIsBusy blocks the page while many events occur, and ends its stream, as a daemon does
// with a page that does not read. The page must connect again, and read the lists again.
func TestPageThatIsBusy(t *testing.T) {
	d, p := openTree(t)
	p.shows("base snapshot", "  sb-a running")
	lists := d.count("GET /v1/sandboxes")
	p.eval(`setTimeout(() => {
		window.busy = true;
		for (const end = Date.now() + 4000; Date.now() < end;);
		window.busy = false;
	})`)
	for range 20_000 {
		d.change("sandbox.labels", "sb-a", record{"labels": record{"name": strings.Repeat("x", 200)}})
	}
	d.sandbox("sb-b", record{"created_at_unix": 3}) // without an event: only a list has it
	d.change("sandbox.labels", "sb-a", record{"labels": record{"name": "at last"}})
	d.breakStreams(true)
	p.wait(`window.busy === false`)
	p.shows("base snapshot", "  at last running", "  sb-b running")
	p.wait(`document.querySelector(".link-state.live")`)
	if n := d.count("GET /v1/sandboxes"); n == lists {
		t.Error("the page has not listed the sandboxes after a gap")
	}
	p.clean("ERR_")
}
