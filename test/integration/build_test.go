package integration_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
)

// TestDaemonCrashWhileBuilding kills the daemon while a step of a template build runs in a VM. The
// next daemon kills the build's sandbox and keeps only the completed steps. The next build
// continues after the completed steps.
func TestDaemonCrashWhileBuilding(t *testing.T) {
	d := load(t).start(t)
	call := d.e2b(t)
	const object, first = "application/json", `{"type":"RUN","args":["echo once >> /var/tmp/runs"]}`
	read := func(v any, method, path, body string, want int) {
		t.Helper()
		if err := json.Unmarshal([]byte(call(method, path, object, body, want, nil)), v); err != nil {
			t.Fatal(err)
		}
	}
	var b struct{ TemplateID, BuildID string }
	read(&b, "POST", "/v3/templates", `{"name":"made"}`, 202)
	var upload struct{ URL string }
	read(&upload, "GET", "/templates/"+b.TemplateID+"/files/unused", "", 201)
	link, err := url.Parse(upload.URL)
	if err != nil {
		t.Fatal(err)
	}
	call("PUT", link.RequestURI(), "application/octet-stream", "an archive", 200, nil)
	archives := filepath.Join(d.state, "builds")
	if len(tree(t, archives)) == 0 {
		t.Fatalf("no archive in %s", archives)
	}
	call("POST", "/v2/templates/"+b.TemplateID+"/builds/"+b.BuildID, object,
		`{"fromTemplate":"`+tag+`","steps":[`+first+`,{"type":"RUN","args":["touch /built; sleep 1000","root"]}]}`, 202, nil)
	eventually(t, bakeLimit, func() error {
		list, err := d.Sandboxes(d.ctx(t, quietLimit))
		if err != nil || len(list) != 1 {
			return fmt.Errorf("%d sandboxes, %v", len(list), err)
		}
		r, err := d.Exec(d.ctx(t, quietLimit), list[0].ID, client.ExecRequest{Args: []string{"test", "-e", "/built"}})
		if err != nil || r.ExitCode != 0 {
			return fmt.Errorf("the step has not begun: %+v, %v", r, err)
		}
		return nil
	})
	d.crash(t)
	d.launch(t)
	eventually(t, quietLimit, func() error {
		list, err := d.Sandboxes(d.ctx(t, quietLimit))
		if vmms := len(d.vmms(t)); err != nil || len(list) != 0 || vmms > 1 { // one VMM waits in the pool
			return fmt.Errorf("%d sandboxes, %d VMMs, %v", len(list), vmms, err)
		}
		return nil
	})
	if left := tree(t, archives); len(left) != 0 {
		t.Errorf("archives are left: %q", left)
	}
	call("GET", "/templates/"+b.TemplateID+"/builds/"+b.BuildID+"/status", object, "", 404, nil)
	snapshots, err := d.Snapshots(d.ctx(t, quietLimit))
	steps := slices.DeleteFunc(snapshots, func(s client.Snapshot) bool { return s.Tag == tag })
	if err != nil || len(steps) != 1 || !strings.HasPrefix(steps[0].Tag, "step-") {
		t.Errorf("snapshots: %+v, %v", steps, err)
	}
	log := d.template(t, `{"name":"made"}`, `{"fromTemplate":"`+tag+`","steps":[`+first+`]}`)
	if !strings.Contains(log, "CACHED [1/1]") {
		t.Errorf("the log of the next build is\n%s", log)
	}
	d.dropBuilt(t, "made")
}

// template builds a template and returns the build's log.
func (d *daemon) template(t *testing.T, ask, start string) string {
	t.Helper()
	call := d.e2b(t)
	const object = "application/json"
	var b struct{ TemplateID, BuildID string }
	if err := json.Unmarshal([]byte(call("POST", "/v3/templates", object, ask, 202, nil)), &b); err != nil {
		t.Fatal(err)
	}
	path := "/templates/" + b.TemplateID + "/builds/" + b.BuildID
	call("POST", "/v2"+path, object, start, 202, nil)
	var log string
	eventually(t, 2*bakeLimit, func() error {
		var now struct {
			Status     string
			LogEntries []struct{ Message string }
		}
		if err := json.Unmarshal([]byte(call("GET", path+"/status", object, "", 200, nil)), &now); err != nil {
			return err
		}
		log = ""
		for _, e := range now.LogEntries {
			log += e.Message + "\n"
		}
		if now.Status == "error" {
			t.Fatalf("the build has failed:\n%s", log)
		}
		if now.Status != "ready" {
			return fmt.Errorf("the build is %s:\n%s", now.Status, log)
		}
		return nil
	})
	return log
}

// TestTemplateOfAnotherSize boots a template in VMs with other CPUs and memory. The template has
// the files and the user of its steps, and its start command runs in every fork.
func TestTemplateOfAnotherSize(t *testing.T) {
	d := load(t).start(t)
	log := d.template(t, `{"name":"sized","cpuCount":2,"memoryMB":384}`, `{"fromTemplate":"`+tag+`","steps":[
		{"type":"USER","args":["worker"]},{"type":"WORKDIR","args":["/srv/app"]},{"type":"ENV","args":["MODE","on"]},
		{"type":"RUN","args":["id -un > who; sleep 1234 & echo $MODE > mode"]}],
		"startCmd":"echo $$ > pid; exec sleep 4321","readyCmd":"test -s pid"}`)
	if !strings.Contains(log, "boots from the disk of "+tag) {
		t.Errorf("the log is\n%s", log)
	}
	made, err := d.Fork(d.ctx(t, bakeLimit), client.ForkRequest{SnapshotTag: "sized", N: 2})
	if err != nil {
		t.Fatal(err)
	}
	const look = `id -un; pwd; echo $MODE; cat who mode
grep -c ^processor /proc/cpuinfo; tr '\0' ' ' < /proc/$(cat pid)/cmdline
grep -lxz 123[4] /proc/[0-9]*/cmdline; awk '/MemTotal/ { print ($2 > 300000 && $2 < 393216) }' /proc/meminfo`
	for _, s := range made.Sandboxes {
		e, err := d.Exec(d.ctx(t, quietLimit), s.ID, client.ExecRequest{Args: []string{"sh", "-c", look}})
		if want := "worker\n/srv/app\non\nworker\non\n2\nsleep 4321 1\n"; err != nil || e.Stdout != want {
			t.Errorf("a fork has %q, %v, want %q (stderr %s)", e.Stdout, err, want, e.Stderr)
		}
		if err := d.Kill(d.ctx(t, quietLimit), s.ID); err != nil {
			t.Error(err)
		}
	}
	d.dropBuilt(t, "sized")
}
