package view

import (
	"flag"
	"os"
	"testing"
)

var (
	realDaemon   = flag.String("daemon", "", "URL of a daemon with real VMs for TestRealVMs; FORKD_TOKEN is its token")
	realSnapshot = flag.String("snapshot", "base", "tag of a snapshot of this daemon")
)

// TestRealVMs shows a fork with a real VM, and the memory that it has written by the count of its VMM.
// The other tests have fake VMs, whose guests are processes of this host.
func TestRealVMs(t *testing.T) {
	if *realDaemon == "" {
		t.Skip("needs a daemon with real VMs: see the flag -daemon")
	}
	r := &rig{t: t, URL: *realDaemon, Token: os.Getenv("FORKD_TOKEN")}
	id := r.fork(*realSnapshot, 1, map[string]string{"name": "real"})[0]
	t.Cleanup(func() { r.call("DELETE", "/v1/sandboxes/"+id, nil, nil) })
	p := newBrowser(t)
	p.open(startView(t, r.URL, r.Token))
	const row = `[...document.querySelectorAll(".row")].find((e) => e.querySelector(".name").textContent === "real")`
	p.wait(row + `?.querySelector(".meter") !== null`) // its VMM has said what it has written
	var written struct {
		KiB int `json:"guest_dirty_kib"`
	}
	if r.call("GET", "/v1/sandboxes/"+id+"/written", nil, &written); written.KiB == 0 {
		t.Error("a running guest has written no memory")
	}
	p.clean(statsOfEnded)
}
