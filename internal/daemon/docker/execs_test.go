package docker

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/gate"
)

// execOf returns an exec of a client. The exec is not started.
func execOf(client string, c *container, cmd command) *exec {
	return &exec{id: newExecID(), of: c, cmd: cmd, client: client, made: time.Unix(1e9, 0)}
}

// running() starts an exec. The process of the exec does not end.
func (e *exec) running() *exec {
	e.started, e.proc = true, newProcess(e.of.id, nil, newOutput(0), false, nil)
	return e
}

func containersOf(n int) (list []*container) {
	for i := range n {
		list = append(list, newContainer(fmt.Sprint("sb-", i)))
	}
	return list
}

// A client that never starts its execs does not lock out other clients.
func TestExecsOfOneClient(t *testing.T) {
	x, containers := newExecs(), containersOf(20)
	first := execOf("root", containers[0], command{})
	if err := x.add(first); err != nil {
		t.Fatal(err)
	}
	for _, c := range containers {
		for range maxExecsOfOne {
			if err := x.add(execOf("user", c, command{})); err != nil {
				t.Fatal(err)
			}
		}
	}
	if most := 1 + gate.Fair(maxExecs); len(x.order) > most || len(x.all) != len(x.order) {
		t.Errorf("%d execs are kept, want at most %d", len(x.order), most)
	}
	if x.all[first.id] == nil {
		t.Error("the exec of another client was forgotten")
	}
	for _, c := range containers {
		if err := x.add(execOf("root", c, command{})); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range containers {
		x.drop(c.id)
	}
	if places, _ := x.count.Count(); places != 0 {
		t.Errorf("%d places are still taken", places)
	}
	if bytes, _ := x.bytes.Count(); bytes != 0 {
		t.Errorf("%d bytes are still taken", bytes)
	}
}

// The total size of the commands of all execs is bounded, and so is the total for one client.
func TestBytesOfExecs(t *testing.T) {
	x, containers := newExecs(), containersOf(4)
	large := command{args: []string{strings.Repeat("x", maxExecSize/2)}}
	for n := range 1000 {
		if err := x.add(execOf("user", containers[n%len(containers)], large)); err != nil {
			t.Fatal(err)
		}
	}
	if bytes, _ := x.bytes.Count(); bytes > gate.Fair(maxExecBytes) {
		t.Errorf("a client has %d bytes", bytes)
	}
	if err := x.add(execOf("root", containers[0], large)); err != nil {
		t.Error(err)
	}
}

// Running execs are never forgotten. If an exec of another client was not started, it is forgotten
// only when it is old.
func TestExecsThatAreForgotten(t *testing.T) {
	x, c := newExecs(), newContainer("sb-1")
	runs := gate.Fair(maxExecsOfOne)
	for range runs {
		if err := x.add(execOf("a", c, command{}).running()); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.add(execOf("a", c, command{})); err == nil {
		t.Error("a client has more execs in a container than its share")
	}
	for range maxExecsOfOne - runs {
		if err := x.add(execOf("b", c, command{})); err != nil {
			t.Fatal(err)
		}
	}
	late := execOf("c", c, command{})
	if err := x.add(late); err == nil {
		t.Error("the exec of another client was forgotten at once")
	}
	late.made = late.made.Add(startWithin + 1)
	if err := x.add(late); err != nil {
		t.Error(err)
	}
	close(x.order[0].proc.ended)
	if err := x.add(execOf("c", c, command{})); err != nil {
		t.Error(err)
	}
}
