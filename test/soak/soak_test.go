package soak

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/test/torture/guest"
)

var size = guest.Size{MemoryMiB: 1, DiskMiB: 1, CPUs: 1}

// newWorker returns a client of a fake daemon, whose requests are handled by the given handler
// (answer).
func newWorker(t *testing.T, answer http.HandlerFunc) *worker {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	d, err := client.New(server.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	s := New(Config{Daemon: d, Base: "base", Size: size, Clients: 1, Boxes: 2, Snapshots: 2,
		Faults: NewFaultLog(), Report: NewReport(1, 1, t.Output())}, guest.Instant{Mark: 1})
	return s.workers[0]
}

// box gives the client a sandbox that was started just now.
func (w *worker) box(id string) *box {
	return w.own.adopt([]client.Sandbox{{ID: id}}, time.Now(), w.base)[0]
}

func problem(w http.ResponseWriter, status int, code string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"error": "it says %s", "code": %q}`, code, code)
}

// An error that no fault explains is a finding. A fault explains only the codes of its kind, and
// only for requests that began before the fault ended.
func TestAnswersAreAccountedFor(t *testing.T) {
	for _, c := range []struct {
		name, code string
		status     int
		fault      Kind
		over       bool
		unexpected int
	}{
		{"no fault", "no_space", 507, "", false, 1},
		{"full disk", "no_space", 507, FillDisk, false, 0},
		{"another fault", "no_space", 507, KillNet, false, 1},
		{"a fault that is over", "no_space", 507, FillDisk, true, 1},
		{"no such code", "hiccup", 500, KillDaemon, false, 1},
		{"VMM of another sandbox", "sandbox_state", 409, KillVMM, false, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorker(t, func(rw http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet {
					fmt.Fprint(rw, `{"id": "a", "state": "running"}`)
					return
				}
				problem(rw, c.status, c.code)
			})
			if c.fault != "" {
				end := w.faults.Begin(c.fault, "b")
				if c.over {
					end()
				}
			}
			w.pause(w.box("a"))
			if w.rep.Unexpected != c.unexpected || w.rep.Operations != 1 || w.rep.ByOperation["pause"][c.code] != 1 {
				t.Errorf("%+v", w.rep)
			}
		})
	}
}

// A fork may fail because the VM of a child was killed, even if the VM of the forked sandbox was
// not killed.
func TestChildrenMayBeKilled(t *testing.T) {
	for unexpected, fault := range []Kind{KillVMM, KillNet} {
		w := newWorker(t, func(rw http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method == http.MethodPost:
				problem(rw, 500, "vm_ended")
			case r.URL.Path == "/v1/sandboxes":
				fmt.Fprint(rw, "[]")
			default:
				fmt.Fprint(rw, `{"id": "a", "state": "running"}`)
			}
		})
		b := w.box("a")
		w.faults.Begin(fault, "child")
		w.forkBox(b)
		if w.rep.Unexpected != unexpected || w.rep.HalfMade != 0 || !w.has(b) {
			t.Errorf("%s: %+v", fault, w.rep)
		}
	}
}

// A sandbox that is missing or has exited counts as lost. It does not count as lost if its VMM was
// killed while the sandbox was running.
func TestLostSandboxesAreFound(t *testing.T) {
	for _, c := range []struct {
		name   string
		killed string
		saved  bool
		lost   int
		ended  int
	}{
		{"for no reason", "", false, 1, 0},
		{"another's VMM was killed", "b", false, 1, 0},
		{"its VMM was killed", "a", false, 0, 1},
		{"its VMM was killed, and it had been suspended", "a", true, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorker(t, func(rw http.ResponseWriter, _ *http.Request) { problem(rw, 404, "sandbox_not_found") })
			b := w.box("a")
			if c.saved {
				b.saved = w.base
			}
			if c.killed != "" {
				w.faults.Begin(KillVMM, c.killed)()
			}
			if w.settle(b, running) || w.rep.LostSandboxes != c.lost || w.rep.EndedByFault != c.ended || w.has(b) {
				t.Errorf("%+v", w.rep)
			}
		})
	}
}

// A sandbox counts as corrupt if it is damaged, if it lacks a file, or if it is a copy of an
// instant that the model does not expect.
func TestDamageIsFound(t *testing.T) {
	whole := guest.Report{OK: true, Pages: 256, Blocks: 256, CPUs: 1, Mark: 7, Seq: 10}
	for _, c := range []struct {
		name    string
		change  func(*guest.Report)
		files   string
		corrupt int
	}{
		{"whole", func(*guest.Report) {}, "s1  f1\n", 0},
		{"another mark", func(r *guest.Report) { r.Mark = 6 }, "s1  f1\n", 1},
		{"an earlier instant", func(r *guest.Report) { r.Seq = 4 }, "s1  f1\n", 1},
		{"damaged", func(r *guest.Report) { r.OK = false }, "s1  f1\n", 1},
		{"another file", func(*guest.Report) {}, "s2  f1\n", 1},
		{"no file", func(*guest.Report) {}, "", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			report := whole
			c.change(&report)
			w := newWorker(t, func(rw http.ResponseWriter, r *http.Request) {
				var req client.ExecRequest
				_ = json.NewDecoder(r.Body).Decode(&req)
				out, _ := json.Marshal(report)
				if len(req.Args) > 0 && req.Args[0] == "/bin/sh" {
					out = []byte(c.files)
				}
				_ = json.NewEncoder(rw).Encode(map[string]string{"stdout": string(out)})
				fmt.Fprintln(rw, `{"end": {"exit_code": 0, "outcome": "exited"}}`)
			})
			b := w.box("a")
			b.now = b.now.marked(7, 5, true).with("f1", "s1")
			if w.verify(b); w.rep.Corrupt != c.corrupt || w.has(b) == (c.corrupt > 0) {
				t.Errorf("%+v", w.rep)
			}
		})
	}
}

// If the answer of a fork is lost, the fork must have made all of its children or none.
func TestHalfMadeForksAreFound(t *testing.T) {
	for _, c := range []struct{ left, half, boxes int }{{0, 0, 0}, {1, 1, 0}, {2, 0, 2}} {
		w := newWorker(t, func(rw http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				problem(rw, 500, "vm_ended")
				return
			}
			fmt.Fprint(rw, "["+strings.TrimSuffix(strings.Repeat(`{"id": "x"},`, c.left), ",")+"]")
		})
		end := w.faults.Begin(KillVMM, "")
		boxes := w.forked(client.ForkRequest{N: 2}, unknown)
		end()
		if len(boxes) != c.boxes || w.rep.HalfMade != c.half {
			t.Errorf("%d of 2 children left: %d taken, %+v", c.left, len(boxes), w.rep)
		}
	}
}

// After a request whose answer was lost, both states of a guest are possible until a later answer
// shows the state of the guest.
func TestUncertainStates(t *testing.T) {
	p := points{{Instant: guest.Instant{Mark: 1, Seq: 5}}}.marked(2, 0, false)
	at := func(mark uint64) *guest.Report {
		return &guest.Report{OK: true, Pages: 256, Blocks: 256, CPUs: 1, Mark: mark, Seq: 9}
	}
	for mark, ok := range map[uint64]bool{1: true, 2: true, 3: false} {
		fit, err := p.check(at(mark), size)
		if (err == nil) != ok || ok && (len(fit) != 1 || fit[0].Mark != mark || fit[0].Seq != 9 ||
			p.newest(fit) != (mark == 2)) {
			t.Errorf("mark %d: %+v, %v", mark, fit, err)
		}
	}
}

func TestReport(t *testing.T) {
	r, log := NewReport(7, 3, t.Output()), NewFaultLog()
	log.Begin(KillDaemon, "")()
	log.Begin(FillDisk, "")()
	r.answered("fork", "ok")
	path := filepath.Join(t.TempDir(), "out", "soak.json")
	if err := r.Write(path, log); err != nil {
		t.Fatal(err)
	}
	if r.Faults != 2 || r.DaemonKills != 1 || r.Operations != 1 || r.Failed() {
		t.Errorf("%+v", r)
	}
	r.Leak("files", "1, before 0")
	var text strings.Builder
	if err := r.Print(&text); err != nil || !r.Failed() || !strings.Contains(text.String(), "1 leaks") {
		t.Errorf("%v: %s", err, text.String())
	}
}
