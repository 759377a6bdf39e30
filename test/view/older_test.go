package view

import (
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// TestOlderDaemon opens the view of a daemon that does not know a route and three query parameters of
// the page. The page works without them, and says so.
func TestOlderDaemon(t *testing.T) {
	d := startFakeDaemon(t)
	d.old = true
	d.snapshot("base", nil)
	d.sandbox("sb-a", nil)
	p := newBrowser(t)
	p.open(startView(t, d.URL, ""))
	p.wait(`document.querySelector(".row .meter")`) // the figures of sb-a
	d.change("sandbox.labels", "sb-a", record{"labels": record{"name": "first"}})
	p.shows("base snapshot", "  first running")
	p.do("choose the sandbox", focus("[role=tree]"), chromedp.KeyEvent(kb.End))
	p.waitText("1.0 KiB private, 2.0 KiB with its share")
	p.page("#/host", `document.body.innerText.includes("does not know: gather_secs, max_age_secs, records, written")`)
	if n := d.count("refused"); n != 4 {
		t.Errorf("the page has asked %d times for what the daemon does not know, want 4 times", n)
	}
	p.clean("400", "404", "500")
}
