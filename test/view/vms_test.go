package view

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var (
	realDaemon   = flag.String("daemon", "", "URL of a daemon with real VMs for TestRealVMs; FORKD_TOKEN is its token")
	realSnapshot = flag.String("snapshot", "base", "tag of a snapshot of this daemon")
)

// TestRealVMs shows a fork with a real VM, and how much memory the fork has written, as counted by
// its VMM. The other tests have fake VMs, whose guests are processes of this host.
func TestRealVMs(t *testing.T) {
	r, id := realFork(t, "real")
	p := newBrowser(t)
	p.open(startView(t, r.URL, r.Token))
	const row = `[...document.querySelectorAll(".row")].find((e) => e.querySelector(".name").textContent === "real")`
	p.wait(row + `?.querySelector(".meter") !== null`) // the VMM has said what the fork has written
	var written struct {
		KiB int `json:"guest_dirty_kib"`
	}
	if r.call("GET", "/v1/sandboxes/"+id+"/written", nil, &written); written.KiB == 0 {
		t.Error("a running guest has written no memory")
	}
	p.clean(statsOfEnded)
}

// realFork forks a sandbox with a real VM, which is killed at the end of the test.
func realFork(t *testing.T, name string) (r *rig, id string) {
	t.Helper()
	if *realDaemon == "" {
		t.Skip("needs a daemon with real VMs: see the flag -daemon")
	}
	r = &rig{t: t, URL: *realDaemon, Token: os.Getenv("FORKD_TOKEN")}
	id = r.fork(*realSnapshot, 1, map[string]string{"name": name})[0]
	t.Cleanup(func() { r.call("DELETE", "/v1/sandboxes/"+id, nil, nil) })
	return r, id
}

// TestRealTerminalAndRollback writes a file in the terminal of a real VM, and undoes this by dragging the
// sandbox onto a branch.
func TestRealTerminalAndRollback(t *testing.T) {
	tag := fmt.Sprintf("view-%d", os.Getpid())
	var daemon *rig    // nil until it has the snapshot
	t.Cleanup(func() { // runs after realFork's cleanup, because a snapshot whose sandbox runs cannot be deleted
		if daemon != nil {
			daemon.call("DELETE", "/v1/snapshots/"+tag, nil, nil)
		}
	})
	r, id := realFork(t, "dragged")
	p := newBrowser(t)
	p.open(startView(t, r.URL, r.Token))
	const screen = `document.querySelector(".xterm-rows").innerText`
	terminal := func(command, want string) {
		t.Helper()
		p.page("#/sandbox/"+id+"/terminal", `document.querySelector(".xterm-rows") && /[#$]/.test(`+screen+`)`)
		p.command(command)
		p.wait(screen + `.includes(` + quoted(want) + `)`)
	}
	file := func() string {
		t.Helper()
		var ran struct{ Stdout string }
		r.call("POST", "/v1/sandboxes/"+id+"/exec", map[string]any{"args": []string{"cat", "/root/of-the-view"}}, &ran)
		return strings.TrimSpace(ran.Stdout)
	}
	terminal("echo one > /root/of-the-view; echo first$((1+1))", "first2")
	r.branch(id, tag)
	daemon = r
	terminal("echo two > /root/of-the-view; echo second$((1+2))", "second3")
	if got := file(); got != "two" {
		t.Fatalf("after the second command, the file has %q", got)
	}

	p.page("#/", `document.querySelector("[role=treeitem]")`)
	p.waitText(tag)
	p.drag("dragged", tag)
	p.wait(`document.querySelector("dialog h2")?.textContent === "Roll back dragged"`)
	p.wait(`document.querySelector("dialog .calls pre").textContent.endsWith("--to ` + tag + `")`)
	p.click("dialog", "Roll back")
	p.waitText("dragged is back at " + tag)
	if got := file(); got != "one" {
		t.Errorf("after the rollback, the file has %q", got)
	}
	terminal("echo third$((2+2)); cat /root/of-the-view", "third4")
	p.page("#/time", `document.querySelector("path.point.snapshot")`)
	p.wait(`[...document.querySelectorAll("[role=option] b")].some((e) => e.textContent === "sandbox.restoring")`)
	p.page("#/", `document.querySelector("[role=treeitem]")`)
	const row = `[...document.querySelectorAll(".row")].find((e) => e.querySelector(".name").textContent === "dragged")`
	p.wait(row + `?.querySelector(".disk").textContent.startsWith("disk ")`)
	p.wait(row + `?.querySelector(".cpu").textContent.startsWith("CPU ")`)
	p.clean(statsOfEnded)
}
