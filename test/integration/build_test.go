package integration_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"testing"

	"github.com/forkd/forkd/client"
)

// TestDaemonCrashWhileBuilding kills the daemon while a step of a template build runs in a VM: the
// next daemon ends the build's sandbox, and has nothing of it.
func TestDaemonCrashWhileBuilding(t *testing.T) {
	d := load(t).start(t)
	call := d.e2b(t)
	const object = "application/json"
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
		`{"fromTemplate":"`+tag+`","steps":[{"type":"RUN","args":["touch /built; sleep 1000","root"]}]}`, 202, nil)
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
		if vmms := len(d.vmms(t)); err != nil || len(list) != 0 || vmms > 1 { // one waits in the pool
			return fmt.Errorf("%d sandboxes, %d VMMs, %v", len(list), vmms, err)
		}
		return nil
	})
	if left := tree(t, archives); len(left) != 0 {
		t.Errorf("archives are left: %q", left)
	}
	call("GET", "/templates/"+b.TemplateID+"/builds/"+b.BuildID+"/status", object, "", 404, nil)
	snapshots, err := d.Snapshots(d.ctx(t, quietLimit))
	if err != nil || len(snapshots) != 1 || snapshots[0].Tag != tag {
		t.Errorf("snapshots: %+v, %v", snapshots, err)
	}
}
