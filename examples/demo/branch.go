package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/forkd/forkd/client"
)

// branchFigures are the measurements of a branch. Each of the fields Memory, Files, Process and
// Paths is a number of children, and should be 3.
type branchFigures struct {
	Mode       string  `json:"mode"`
	PauseMS    float64 `json:"pause_ms"` // how long the source was paused
	ReadyMS    float64 `json:"ready_ms"` // from the request until children can be forked
	DirtyBytes uint64  `json:"dirty_bytes"`
	ForkWallMS float64 `json:"fork_wall_ms"` // duration of the fork of the three children
	Memory     int     `json:"memory_inherited"`
	Files      int     `json:"files_inherited"`
	Process    int     `json:"process_inherited"`
	Paths      int     `json:"paths_right"` // number of children that gave the right answer for their path
}

// branchChildren is the number of children that are forked from the branch. branchPaths has a path
// for each child.
const branchChildren = 3

func (b *branchFigures) complete() bool {
	return b.Memory == branchChildren && b.Files == branchChildren && b.Process == branchChildren &&
		b.Paths == branchChildren
}

// The source is branched while two programs run. A thread of its warm interpreter adds up 1 + 2 + 3
// + …, so that the variable total is n(n+1)/2 in every consistent copy of its memory. A process
// appends lines to a file. branchMoves is a script that waits until the file grows.
const (
	branchStart = `
import threading, time
n, total, lock = 0, 0, threading.Lock()
def add_up():
    global n, total
    while True:
        with lock:
            n += 1
            total += n
        time.sleep(0.02)
threading.Thread(target=add_up, daemon=True).start()
`
	branchProcess = `while :; do echo >>/root/steps; sleep 0.5; done`
	branchMoves   = `kill -0 $(cat /root/worker.pid) && was=$(wc -l </root/steps); while [ $(wc -l </root/steps) = $was ]; do sleep 0.2; done`
	branchPlan    = "three ways on from here\n"
	branchFile    = "/root/plan.txt"
)

// branchPaths are the different computations with which the children continue. Each has Python
// code, and a function that computes the right answer from n and total.
var branchPaths = [branchChildren]struct {
	code string
	want func(n, total int64) int64
}{
	{"total + sum(range(n + 1, n + 101))", func(n, _ int64) int64 { return (n + 100) * (n + 101) / 2 }},
	{"total - sum(range(1, n + 1))", func(int64, int64) int64 { return 0 }},
	{"n * total", func(n, total int64) int64 { return n * total }},
}

// branch branches the last child while it computes, and forks children from that branch.
func (d *demo) branch() (string, error) {
	if len(d.forked.Sandboxes) == 0 {
		return "", fmt.Errorf("no child to branch")
	}
	source := d.forked.Sandboxes[len(d.forked.Sandboxes)-1].ID
	if err := d.startComputing(source); err != nil {
		return "", err
	}
	at, err := d.computed(source, "0")
	if err != nil {
		return "", err
	}
	snap, err := d.client.Branch(d.ctx, source, client.BranchRequest{})
	if err != nil {
		return "", err
	}
	d.branchTag = snap.Tag
	b := &branchFigures{Mode: snap.Mode}
	d.figures.Branch = b
	if snap.PauseMS != nil && snap.ReadyMS != nil && snap.DirtyBytes != nil {
		b.PauseMS, b.ReadyMS, b.DirtyBytes = *snap.PauseMS, *snap.ReadyMS, *snap.DirtyBytes
	}
	forked, err := d.client.Fork(d.ctx, client.ForkRequest{
		SnapshotTag: snap.Tag, N: branchChildren, HostnamePrefix: "demo", TTLSecs: ttl.Seconds(),
	})
	if err != nil {
		return "", err
	}
	d.branched, b.ForkWallMS = forked.Sandboxes, forked.ForkWallMS
	for i, s := range forked.Sandboxes {
		if err := d.follow(i, s.ID, at.N); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("paused for %.1f ms, %d of %d children are right", b.PauseMS,
		min(b.Memory, b.Files, b.Process, b.Paths), branchChildren), nil
}

// startComputing starts a computation in the memory of a sandbox, makes a file, and starts a
// process. The branch must preserve all three.
func (d *demo) startComputing(id string) error {
	r, err := d.client.Eval(d.ctx, id, client.EvalRequest{Code: branchStart, TimeoutSecs: timeout})
	if err == nil && r.Error != "" {
		err = fmt.Errorf("%s", r.Error)
	}
	if err != nil {
		return err
	}
	if err := d.client.WriteFile(d.ctx, id, branchFile, strings.NewReader(branchPlan)); err != nil {
		return err
	}
	return d.shell(id, "("+branchProcess+") >/dev/null 2>&1 & echo $! >/root/worker.pid; while ! [ -e /root/steps ]; do sleep 0.1; done")
}

// computation is the state of the computing thread, and the value of an expression.
type computation struct{ N, Total, Answer int64 }

// computed reads a consistent state of the computation.
func (d *demo) computed(id, expression string) (c computation, err error) {
	code := `import json
with lock:
    found = json.dumps({"N": n, "Total": total, "Answer": ` + expression + `})
print(found)`
	r, err := d.client.Eval(d.ctx, id, client.EvalRequest{Code: code, TimeoutSecs: timeout})
	if err == nil && r.Error != "" {
		err = fmt.Errorf("%s", r.Error)
	}
	if err == nil {
		err = json.Unmarshal([]byte(r.Stdout), &c)
	}
	return c, err
}

// follow lets child i of the branch continue, and counts the parts of the state that the child has
// inherited correctly. Before the branch, n had reached at least the value atLeast in the source.
func (d *demo) follow(i int, id string, atLeast int64) error {
	b, path := d.figures.Branch, branchPaths[i]
	c, err := d.computed(id, path.code)
	if err != nil {
		return err
	}
	b.Memory += btoi(c.N >= atLeast && c.Total == c.N*(c.N+1)/2)
	b.Paths += btoi(c.Answer == path.want(c.N, c.Total))
	file, err := d.client.ReadFile(d.ctx, id, branchFile)
	if err != nil {
		return err
	}
	defer file.Close()
	content, err := io.ReadAll(file)
	if err != nil {
		return err
	}
	b.Files += btoi(bytes.Equal(content, []byte(branchPlan)))
	if err := d.shell(id, branchMoves); err != nil {
		return fmt.Errorf("the process that the child inherited: %w", err)
	}
	b.Process++
	return nil
}

// shell runs a script that must succeed.
func (d *demo) shell(id, script string) error {
	r, err := d.client.Exec(d.ctx, id, client.ExecRequest{Args: []string{"/bin/sh", "-c", script},
		TimeoutSecs: timeout})
	if err == nil && (r.ExitCode != 0 || r.Error != "") {
		err = fmt.Errorf("%s: exit code %d %s %s", script, r.ExitCode, r.Error, r.Stderr)
	}
	return err
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
