package view

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// drawn counts the rows of the tree that change in the document, once for each batch of changes. A row
// whose figures or age alone have changed does not count, because these change without events.
const drawn = `window.drawnRows = 0; new MutationObserver((changes) => {
	const rows = new Set();
	for (const c of changes) {
		const at = c.target.nodeType === Node.TEXT_NODE ? c.target.parentElement : c.target;
		if (at?.closest(".age, .memory, .disk, .cpu")) continue;
		const row = at?.closest("[role=treeitem]");
		if (row) rows.add(row);
	}
	window.drawnRows += rows.size;
}).observe(document.querySelector("[role=tree]"), {subtree: true, childList: true, characterData: true})`

// TestCostOfEvents counts what a page costs while sandboxes are forked, changed and killed: its
// requests to the daemon, the bytes of their answers, and the rows that it draws.
func TestCostOfEvents(t *testing.T) {
	r := startRig(t)
	// The tree is sorted by creation time, in whole seconds. Of these sandboxes, only the last is
	// not on the screen.
	const second = 1100 * time.Millisecond
	first := r.fork("base", 1, nil)[0]
	time.Sleep(second)
	r.fork("base", 58, nil)
	time.Sleep(second)
	last := r.fork("base", 1, nil)[0]
	v := startView(t, r.URL, r.Token)
	p := newBrowser(t)
	p.open(v)
	p.wait(allMeasured)
	p.eval(drawn)
	r.call("POST", "/_rig/faults", map[string]any{"clear": true}, nil)
	before, began := p.receivedBytes(), time.Now()

	const rounds, each = 20, 10
	events := 0
	var forks []string
	for n := range rounds {
		for range each {
			r.call("PATCH", "/v1/sandboxes/"+last+"/labels", map[string]string{"name": fmt.Sprintf("turn-%d", n)}, nil)
		}
		old := forks
		forks = r.fork("base", each, nil)
		for _, id := range old {
			r.call("DELETE", "/v1/sandboxes/"+id, nil, nil)
		}
		events += 2*each + len(old)
		time.Sleep(300 * time.Millisecond) // longer than the page gathers events
	}
	r.call("PATCH", "/v1/sandboxes/"+first+"/labels", map[string]string{"name": "the end"}, nil)
	p.wait(`[...document.querySelectorAll(".row .name")].some((e) => e.textContent === "the end")`)
	took := time.Since(began)

	var state struct{ Requests map[string]int }
	r.call("GET", "/_rig/state", nil, &state)
	reads, lists, figures := 0, 0, 0
	for request, n := range state.Requests {
		switch path, ok := strings.CutPrefix(request, "GET /v1/"); {
		case !ok:
		case path == "sandboxes" || path == "snapshots":
			lists += n
		case strings.HasPrefix(path, "sandboxes/") && strings.Count(path, "/") == 1 || strings.HasSuffix(path, "/info"):
			reads += n
		case strings.HasSuffix(path, "/written") || strings.HasSuffix(path, "/stats"):
			figures += n
		}
	}
	t.Logf("%d events in %v", events, took.Round(time.Millisecond))
	// Every 3 seconds, the page reads the record of the chosen sandbox, and the figures of four
	// sandboxes.
	turns := 2 + int(took/(3*time.Second))
	for _, c := range []struct {
		what       string
		have, most int
	}{
		{"lists", lists, 0},
		{"records read", reads, turns},
		{"figures read", figures, 4 * turns},
		{"bytes received", p.receivedBytes() - before, 500*events + 4096*turns},
		{"rows drawn", eval[int](p, `window.drawnRows`), 2}, // only the last event is about a row on the screen
	} {
		t.Logf("%s: %d", c.what, c.have)
		if c.have > c.most {
			t.Errorf("%d %s, want at most %d", c.have, c.what, c.most)
		}
	}
	p.clean(statsOfEnded)
}
