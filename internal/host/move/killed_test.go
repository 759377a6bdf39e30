package move_test

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
	"github.com/forkd/forkd/internal/apirig"
)

// Both daemons are killed between any two durable parts of a move. Afterwards at most one of them
// lets clients use the sandbox, and a repeated move completes. A cancel either gives the sandbox
// back to the first host, or is refused because that host has given the sandbox up. Nothing is left
// over.
func TestKilledAtEveryPoint(t *testing.T) {
	var p *pair
	var points []string
	var kept [][2]string
	root := t.TempDir()
	p = newPair(t, apirig.Options{MoveFault: func(point string) {
		dirs := [2]string{filepath.Join(root, fmt.Sprint(len(kept), "a")), filepath.Join(root, fmt.Sprint(len(kept), "b"))}
		for i, rig := range []*apirig.Rig{p.a, p.b} {
			copyState(t, filepath.Dir(rig.TokenFile), dirs[i])
		}
		points, kept = append(points, point), append(kept, dirs)
	}}, client.ForkRequest{})
	if _, err := p.a.Suspend(t.Context(), p.id); err != nil {
		t.Fatal(err)
	}
	p.a.Store.Quiesce()
	if _, err := p.move(); err != nil {
		t.Fatal(err)
	}
	if p.where() != "b" {
		t.Fatalf("the sandbox is on %q", p.where())
	}
	for _, want := range []string{"leaving", "pulled", "arriving", "active", "gone"} {
		if !slices.Contains(points, want) {
			t.Errorf("the move did not pass %q, but %v", want, points)
		}
	}
	for i, point := range points {
		for _, cancels := range []bool{false, true} {
			if cancels && i > slices.Index(points, "active") { // the first host may still have files
				continue
			}
			t.Run(fmt.Sprintf("%d %s cancels=%v", i, point, cancels), func(t *testing.T) {
				t.Parallel() // the test mostly waits
				dirs := [2]string{t.TempDir(), t.TempDir()}
				for n, dir := range dirs {
					copyState(t, kept[i][n]+"/.", dir)
				}
				again := startPair(t, dirs, apirig.Options{})
				again.id = p.id
				again.afterKill(cancels)
			})
		}
	}
}

// copyState copies the state of a daemon as it is now. Memory files consist almost only of holes. If the
// daemon is deleting a snapshot, cp may look for files that are gone.
func copyState(t *testing.T, from, to string) {
	t.Helper()
	for try := 0; ; try++ {
		text, err := exec.Command("cp", "-a", "--sparse=auto", from, to).CombinedOutput()
		if err == nil {
			return
		}
		if try == 3 || !strings.Contains(string(text), "No such file") {
			t.Errorf("%v: %s", err, text)
			return
		}
		if err := os.RemoveAll(to); err != nil {
			t.Error(err)
		}
	}
}

func (p *pair) afterKill(cancels bool) {
	t := p.t
	if on := p.where(); len(on) > 1 {
		t.Fatalf("after the kill, clients can use the sandbox on %q", on)
	}
	back := false
	if cancels {
		from, to := p.hosts()
		err := client.CancelMove(t.Context(), p.id, from, to)
		if back = err == nil && p.where() == "a"; err != nil && !errors.Is(err, client.ErrConflict) {
			t.Fatalf("cancel: %v", err)
		}
	}
	on, end := p.b, "b"
	if back {
		on, end = p.a, "a"
	} else if p.where() != "b" {
		if _, err := p.move(); err != nil {
			t.Fatalf("repeat the move: %v", err)
		}
	}
	if p.where() != end {
		t.Fatalf("the sandbox is on %q, want %q", p.where(), end)
	}
	if list := states(on); len(list) != 1 {
		t.Errorf("suspended states on %s: %v", end, list)
	}
	runs(t, on, p.id)
	if back {
		if list := states(p.b); len(list) > 0 {
			t.Errorf("the cancelled move has left %v", list)
		}
		if _, err := p.move(); err != nil { // a new move, with a new key
			t.Errorf("move after a cancelled move: %v", err)
		}
	} else if _, err := p.a.MoveStep(t.Context(), "", p.id, client.MoveStep{Step: "free"}); err != nil {
		t.Error(err) // the move may have been complete except for this step
	}
	if list := states(p.a); len(list) > 0 {
		t.Errorf("the first host still has %v", list)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(p.a.TokenFile), "data", p.id)); !os.IsNotExist(err) {
		t.Errorf("the first host still has files of the sandbox: %v", err)
	}
}
