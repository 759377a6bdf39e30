package view

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// shownTree is an expression for the tree of the page: a line for each row, with its depth.
const shownTree = `[...document.querySelectorAll("[role=treeitem]")].map((e) =>
	"  ".repeat(e.getAttribute("aria-level") - 1) + e.querySelector(".name").textContent + " " + e.querySelector(".state").textContent).join("\n")`

// shows waits until the page shows a tree.
func (p *page) shows(lines ...string) {
	p.t.Helper()
	p.wait(shownTree + ` === ` + quoted(strings.Join(lines, "\n")))
}

// TestEvents checks that an event of each kind leads to the tree that a list would show.
func TestEvents(t *testing.T) {
	d, p := openTree(t)
	p.shows("base snapshot", "  sb-a running")

	d.sandbox("sb-b", record{"created_at_unix": 3, "labels": record{"name": "bee"}})
	d.emit("sandbox.created", "sb-b", "base", record{"labels": record{"name": "bee"}})
	p.shows("base snapshot", "  sb-a running", "  bee running")
	d.sandbox("sb-c", record{"created_at_unix": 4})
	d.emit("sandbox.adopted", "sb-c", "base", nil)
	p.shows("base snapshot", "  sb-a running", "  bee running", "  sb-c running")
	d.change("sandbox.labels", "sb-b", record{"labels": record{"name": "bumble", "x": "1"}})
	p.shows("base snapshot", "  sb-a running", "  bumble running", "  sb-c running")
	d.change("sandbox.labels", "sb-b", record{"labels": nil})
	p.shows("base snapshot", "  sb-a running", "  sb-b running", "  sb-c running")
	d.change("sandbox.paused", "sb-b", record{"state": "paused"})
	d.change("sandbox.suspended", "sb-c", record{"state": "suspended"})
	p.shows("base snapshot", "  sb-a running", "  sb-b paused", "  sb-c suspended")
	d.change("sandbox.running", "sb-b", record{"state": "running"})
	d.change("sandbox.exited", "sb-c", record{"state": "exited", "exit_reason": "panic"})
	p.shows("base snapshot", "  sb-a running", "  sb-b running", "  sb-c exited: panic")

	d.snapshot("mark", record{"created_at_unix": 5, "sandbox_id": "sb-a", "branched_from": "base",
		"persist_status": "pending"})
	d.emit("snapshot.created", "sb-a", "mark", nil)
	d.emit("snapshot.persisted", "sb-a", "mark", nil)
	p.shows("base snapshot", "  sb-a running", "    mark snapshot", "  sb-b running", "  sb-c exited: panic")
	// A rollback moves a sandbox.
	d.change("sandbox.restoring", "sb-b", record{"state": "restoring"})
	p.shows("base snapshot", "  sb-a running", "    mark snapshot", "  sb-b restoring", "  sb-c exited: panic")
	d.change("sandbox.running", "sb-b", record{"state": "running", "snapshot_tag": "mark", "latest_tag": "mark"})
	p.shows("base snapshot", "  sb-a running", "    mark snapshot", "      sb-b running", "  sb-c exited: panic")
	// The snapshot of a suspended state has no events.
	d.snapshot("state-1", record{"created_at_unix": 6, "transient": true, "branched_from": "base"})
	d.change("sandbox.running", "sb-c", record{"state": "running", "snapshot_tag": "state-1", "exit_reason": nil})
	p.shows("base snapshot", "  sb-a running", "    mark snapshot", "      sb-b running", "  state-1 snapshot",
		"    sb-c running")
	d.change("sandbox.running", "sb-c", record{"state": "running", "snapshot_tag": "base"})
	p.shows("base snapshot", "  sb-a running", "    mark snapshot", "      sb-b running", "  sb-c running")
	d.emit("sandbox.hook_failed", "sb-c", "base", record{"reason": "before_branch"})
	// A branch stays below its origin when its sandbox is deleted.
	d.remove("sandbox.deleted", "sb-a")
	p.shows("base snapshot", "  sb-c running", "  mark snapshot", "    sb-b running")
	d.snapshot("lost", record{"created_at_unix": 7, "status": "failed"})
	d.emit("snapshot.failed", "", "lost", nil)
	p.shows("base snapshot", "  sb-c running", "  mark snapshot", "    sb-b running", "lost failed")
	d.remove("snapshot.deleted", "lost")
	d.remove("snapshot.deleted", "mark")
	p.shows("base snapshot", "  sb-c running", "sb-b running")
	d.emit("sandbox.of_the_future", "sb-c", "base", nil)
	d.emit("future.created", "sb-c", "base", nil)
	d.change("sandbox.paused", "sb-c", record{"state": "paused"})
	p.shows("base snapshot", "  sb-c paused", "sb-b running")

	if n := d.count("GET /v1/sandboxes"); n != 1 {
		t.Errorf("the page has listed the sandboxes %d times, want once", n)
	}
	if n := d.count("GET /v1/snapshots"); n != 2 { // at the start, and for the failed branch
		t.Errorf("the page has listed the snapshots %d times, want twice", n)
	}
	p.clean()
}

// TestStreamOfEventsBreaks checks what the page does when the stream ends, has a gap, or is out of
// order.
func TestStreamOfEventsBreaks(t *testing.T) {
	d, p := openTree(t)
	p.shows("base snapshot", "  sb-a running")

	// The page continues where the stream ended.
	d.breakStreams(false)
	d.change("sandbox.paused", "sb-a", record{"state": "paused"})
	p.shows("base snapshot", "  sb-a paused")
	if n := d.count("GET /v1/sandboxes"); n != 1 {
		t.Errorf("the page has listed the sandboxes %d times, want once: the stream had no gap", n)
	}
	if n := d.count("continue"); n == 0 {
		t.Error("the page has not continued the stream")
	}

	// After a gap in the stream, the page must read the lists again.
	d.sandbox("sb-a", record{"created_at_unix": 2, "labels": record{"name": "listed"}})
	d.sandbox("sb-b", record{"created_at_unix": 3})
	d.emit("missed", "", "", nil)
	p.shows("base snapshot", "  listed running", "  sb-b running")

	// After a restart of the daemon, the page must also read the lists again.
	d.mu.Lock()
	d.sandboxes.remove("sb-b")
	d.mu.Unlock()
	d.breakStreams(true)
	p.shows("base snapshot", "  listed running")

	// An event that comes twice, or late, does not undo the changes of a newer event.
	d.change("sandbox.paused", "sb-a", record{"state": "paused"})
	p.shows("base snapshot", "  listed paused")
	lists := d.count("GET /v1/sandboxes")
	d.mu.Lock()
	d.emitLocked(1, "sandbox.running", "sb-a", "base", record{"labels": record{"name": "late"}})
	d.emitLocked(1, "sandbox.deleted", "sb-a", "base", nil)
	d.mu.Unlock()
	d.change("sandbox.labels", "sb-a", record{"labels": record{"name": "in order"}})
	p.shows("base snapshot", "  in order paused")
	for end := time.Now().Add(*patience); d.count("GET /v1/sandboxes") == lists; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the page has not listed the sandboxes after events out of order")
		}
	}
	p.shows("base snapshot", "  in order paused")
	p.clean("ERR_")
}

// TestEventDuringRead checks that an answer of the daemon does not undo the changes of a newer
// event.
func TestEventDuringRead(t *testing.T) {
	d, p := openTree(t)

	release := d.holdNext("/v1/sandboxes/sb-b")
	d.sandbox("sb-b", record{"created_at_unix": 3, "labels": record{"name": "old"}})
	d.emit("sandbox.created", "sb-b", "base", record{"labels": record{"name": "old"}})
	<-d.held
	d.change("sandbox.labels", "sb-b", record{"labels": record{"name": "new"}})
	d.change("sandbox.labels", "sb-a", record{"labels": record{"name": "received"}})
	p.shows("base snapshot", "  received running")
	release()
	p.shows("base snapshot", "  received running", "  new running")

	release = d.holdNext("/v1/sandboxes")
	d.emit("missed", "", "", nil)
	<-d.held
	d.sandbox("sb-c", record{"created_at_unix": 4})
	d.emit("sandbox.created", "sb-c", "base", nil)
	d.remove("sandbox.deleted", "sb-b")
	p.shows("base snapshot", "  received running")
	release() // the list has sb-b, and not sb-c
	p.shows("base snapshot", "  received running", "  sb-c running")
	p.clean()
}

// TestReadFails checks that the page lists everything if the daemon does not answer for one sandbox.
func TestReadFails(t *testing.T) {
	d := startFakeDaemon(t)
	d.snapshot("base", nil)
	v := startView(t, d.URL, "")
	p := newBrowser(t)
	p.open(v)
	d.mu.Lock()
	d.fail["/v1/sandboxes/sb-a"], d.fail["/v1/sandboxes"] = 1, 1
	d.mu.Unlock()
	d.sandbox("sb-a", record{"created_at_unix": 2})
	d.emit("sandbox.created", "sb-a", "base", nil)
	p.shows("base snapshot", "  sb-a running")
	// The page must not show a sandbox that the daemon no longer has.
	d.emit("sandbox.created", "sb-gone", "base", nil)
	d.change("sandbox.paused", "sb-a", record{"state": "paused"})
	p.shows("base snapshot", "  sb-a paused")
	p.clean("500")
}

// TestEventStorm counts the page's requests during many events.
func TestEventStorm(t *testing.T) {
	const many = 1000
	d := startFakeDaemon(t)
	d.snapshot("base", nil)
	id := func(i int) string { return fmt.Sprintf("sb-%026d", i) }
	for i := range many {
		d.sandbox(id(i), record{"created_at_unix": 2 + i})
	}
	v := startView(t, d.URL, "")
	p := newBrowser(t)
	p.open(v)
	p.waitText("1,000 sandboxes")
	began := time.Now()
	// The page reads the selected sandbox again every 3 seconds, even without events.
	reads := func() int { return d.count("GET /v1/sandboxes/{id}") }
	bound := func() int { return 2 + int(time.Since(began)/(3*time.Second)) }
	for i := range many {
		d.change("sandbox.labels", id(i), record{"labels": record{"name": fmt.Sprintf("turn-%d", i)}})
	}
	p.waitText("turn-0")
	p.wait(shownTree + `.includes("turn-10")`)
	if n := reads(); n > bound() {
		t.Errorf("1000 events with all they changed have led to %d reads of sandboxes, want at most %d", n, bound())
	}
	if n := d.count("GET /v1/sandboxes"); n != 1 {
		t.Errorf("after 1000 events, the page has listed the sandboxes %d times, want once", n)
	}

	// If there are many new sandboxes, the page reads a few of them one by one, and then lists all
	// sandboxes, at most once a second.
	before := reads()
	for i := range many {
		d.sandbox(id(many+i), record{"created_at_unix": 2 + many + i})
		d.emit("sandbox.created", id(many+i), "base", nil)
	}
	p.waitText("2,000 sandboxes")
	lists, more := d.count("GET /v1/sandboxes"), reads()-before
	seconds := int(time.Since(began) / time.Second)
	if lists > 2+seconds {
		t.Errorf("after 1000 new sandboxes, the page has listed the sandboxes %d times in %d s", lists, seconds)
	}
	if more > 32*(5+4*seconds)+bound() { // up to 32 sandboxes, four times a second
		t.Errorf("1000 new sandboxes have led to %d reads of one sandbox in %d s", more, seconds)
	}

	// The page sends no requests for deleted sandboxes.
	lists, before = d.count("GET /v1/sandboxes"), reads()
	for i := range 2 * many {
		d.remove("sandbox.deleted", id(i))
	}
	p.shows("base snapshot")
	if n := d.count("GET /v1/sandboxes"); n > lists+1 { // the page may still have been listing the new sandboxes
		t.Errorf("2000 deletions have led to %d lists", n-lists)
	}
	if n := reads() - before; n > bound() {
		t.Errorf("2000 deletions have led to %d reads", n)
	}
	p.clean()
}
