package envd

import (
	"slices"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/proto/envdproto/process"
)

// connectableFor is how long a process stays in the table after its end, so that a client that
// connects late learns how the process ended.
const connectableFor = 30 * time.Second

// table holds the running and the recently ended processes that clients have started.
type table struct {
	mu    sync.Mutex
	procs []*proc // oldest first
}

func newTable() *table { return &table{} }

func (t *table) add(p *proc) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pruneLocked(time.Now())
	t.procs = append(t.procs, p)
}

// pruneLocked removes processes that ended longer than connectableFor ago. The table's methods call
// it instead of a timer, which would fire in every child of a snapshot.
func (t *table) pruneLocked(now time.Time) {
	t.procs = slices.DeleteFunc(t.procs, func(p *proc) bool {
		return p.hasEnded() && now.Sub(p.stopped) > connectableFor
	})
}

func (p *proc) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// find returns the process that a selector matches, or nil. If several processes match, it returns
// the process that was started last.
func (t *table) find(sel *process.ProcessSelector) *proc {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pruneLocked(time.Now())
	for _, p := range slices.Backward(t.procs) {
		switch s := sel.GetSelector().(type) {
		case *process.ProcessSelector_Pid:
			if uint32(p.child.Pid) == s.Pid {
				return p
			}
		case *process.ProcessSelector_Tag:
			if p.tag != nil && *p.tag == s.Tag {
				return p
			}
		}
	}
	return nil
}

// live returns the running processes.
func (t *table) live() []*proc {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []*proc
	for _, p := range t.procs {
		if !p.hasEnded() {
			out = append(out, p)
		}
	}
	return out
}
