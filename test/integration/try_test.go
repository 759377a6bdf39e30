package integration_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
)

// TestTry tries commands in copies of a sandbox, and keeps the first copy, the best copy, all copies or
// none. The copies continue with the memory and the files of the sandbox. The sandbox itself changes only
// if the winner is promoted.
func TestTry(t *testing.T) {
	d := load(t).start(t)
	box := d.fork(t, 1)[0]
	d.value(t, box.ID, "[state := 41]")
	d.sh(t, box.ID, "echo source >/root/note")
	var results [4]client.TryResult
	try := func(req client.TryRequest) client.TryEnd {
		t.Helper()
		results = [4]client.TryResult{}
		end, err := d.Try(d.ctx(t, bakeLimit), box.ID, req, nil, func(r client.TryResult) error {
			results[r.Index] = r
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return end
	}
	lines := func(commands ...string) (each [][]string) {
		for _, c := range commands {
			each = append(each, client.Shell(c))
		}
		return each
	}

	end := try(client.TryRequest{N: 4, Args: client.Shell("echo $FORKD_TRY_INDEX; cat /root/note; hostname >/root/note")})
	for i, r := range results {
		if r.Exec == nil || r.Exec.Stdout != fmt.Sprintf("%d\nsource\n", i) || r.PrivateKiB == nil || *r.PrivateKiB == 0 ||
			r.MemoryKiB == nil || r.DiskKiB == nil {
			t.Errorf("copy %d: %+v", i, r)
		}
	}
	if len(end.Kept) != 0 {
		t.Errorf("kept: %+v", end.Kept)
	}
	d.only(t, box)
	d.noBranch(t)

	end = try(client.TryRequest{Keep: "first",
		Each: lines("exit 1", "sleep 1000", "sleep 1; echo second >>/root/note", "no-such-command")})
	if end.Winner == nil || *end.Winner != 2 || len(end.Kept) != 1 || !results[1].Stopped {
		t.Fatalf("%+v; %+v", end, results)
	}
	first := end.Kept[0]
	d.only(t, box, first)
	if got := d.sh(t, first.ID, "cat /root/note"); got != "source\nsecond\n" {
		t.Errorf("the copy that stays has %q", got)
	}
	if got := d.value(t, first.ID, "state"); got != "41" {
		t.Errorf("the copy that stays has the state %s", got)
	}
	d.kill(t, first)
	d.noBranch(t)

	// The best copy is promoted into the sandbox, with a process of the copy's command that is
	// still running.
	name := d.sh(t, box.ID, "hostname")
	end = try(client.TryRequest{Promote: true, Judge: client.Shell("cat /root/score"), Each: lines(
		"echo 3 >/root/score", "echo 12 >/root/score; sleep 1000 >/dev/null 2>&1 & echo $! >/root/pid", "true",
		"echo 7 >/root/score")})
	if end.Winner == nil || *end.Winner != 1 || end.Promoted == nil || end.Promoted.ID != box.ID ||
		end.Promoted.PID != box.PID || results[2].JudgeError == "" || results[3].Score == nil || *results[3].Score != 7 {
		t.Fatalf("%+v; %+v", end, results)
	}
	d.only(t, box)
	got := d.sh(t, box.ID, "cat /root/note /root/score; kill -0 $(cat /root/pid) && echo alive; hostname")
	if got != "source\n12\nalive\n"+name {
		t.Errorf("the source goes on with %q, want the name %q", got, name)
	}
	if got := d.value(t, box.ID, "state"); got != "41" {
		t.Errorf("the source goes on with the state %s", got)
	}

	var report struct {
		Kept []client.Sandbox
	}
	d.cliJSON(t, &report, "try", box.ID, "--keep", "all", "--each", "exit 3", "--each", "true")
	d.only(t, append(report.Kept, box)...)
	if len(report.Kept) != 2 {
		t.Errorf("kept: %+v", report)
	}
	d.kill(t, append(report.Kept, box)...)
	d.noBranch(t)
}

// noBranch checks that only the parent's snapshot exists.
func (d *daemon) noBranch(t *testing.T) {
	t.Helper()
	eventually(t, quietLimit, func() error {
		list, err := d.Snapshots(d.ctx(t, quietLimit))
		list = slices.DeleteFunc(list, func(s client.Snapshot) bool {
			return strings.HasPrefix(s.Tag, "step-") // builds of earlier tests leave such snapshots
		})
		if err == nil && len(list) != 1 {
			err = fmt.Errorf("%d snapshots are left: %+v", len(list), list)
		}
		return err
	})
}

// TestTryKilled kills the daemon, and then the program `forkd try`, while copies of a sandbox run
// commands. No copy and no branch remains, and the sandbox is unchanged.
func TestTryKilled(t *testing.T) {
	d := load(t).start(t)
	box := d.fork(t, 1)[0]
	d.value(t, box.ID, "[state := 41]")
	four := client.TryRequest{N: 4, Args: client.Shell("echo $$ >/root/own; sleep 1000"), Keep: "all"}
	d.sh(t, box.ID, "echo source >/root/own")
	left := func() {
		t.Helper()
		eventually(t, bakeLimit, func() error {
			list, err := d.Sandboxes(d.ctx(t, quietLimit))
			if n := len(d.vmms(t)); err == nil && (len(list) != 1 || n > 2) { // one VMM waits in the pool
				err = fmt.Errorf("%d sandboxes and %d VMMs", len(list), n)
			}
			return err
		})
		d.only(t, box)
		d.noBranch(t)
		if notes, _ := filepath.Glob(filepath.Join(d.run, "vm", "fork-*")); len(notes) != 0 {
			t.Errorf("left: %v", notes)
		}
		if got := d.sh(t, box.ID, "cat /root/own") + d.value(t, box.ID, "state"); got != "source\n41" {
			t.Errorf("the sandbox has %q", got)
		}
	}

	for _, come := range []string{"two copies have a VM", "the commands run"} {
		d.audit(t) // waits for the end of the copies that were killed
		vmms, begun, ended := len(d.vmms(t)), make(chan struct{}), make(chan error, 1)
		go func() {
			_, err := d.Try(d.ctx(t, bakeLimit), box.ID, four, func(client.TryStarted) error {
				close(begun)
				return nil
			}, nil)
			ended <- err
		}()
		eventually(t, bakeLimit, func() error {
			select {
			case err := <-ended:
				t.Fatal(err)
			case <-begun:
				return nil
			default:
			}
			if come == "the commands run" || len(d.vmms(t)) < vmms+2 {
				return errors.New("the copies have not started")
			}
			return nil
		})
		d.crash(t)
		if err := <-ended; err == nil {
			t.Errorf("killed when %s: the try has ended well", come)
		}
		d.launch(t)
		left()
	}

	cmd := exec.CommandContext(d.ctx(t, bakeLimit), d.f.program, "try", box.ID, "-n", "4", "--keep", "all", "--", "sleep",
		"1000")
	cmd.Env = append(os.Environ(), "FORKD_URL=unix://"+filepath.Join(d.run, "forkd.sock"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, bakeLimit, func() error {
		list, err := d.Sandboxes(d.ctx(t, quietLimit))
		if err == nil && len(list) != 5 {
			err = errors.New("the copies have not started")
		}
		return err
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the command ended with %v", err)
	}
	left()
	d.kill(t, box)
}
