package sandbox

import (
	"fmt"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/host/byage"
	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/ledger"
)

// A page of the list costs the same in a long list as in a short one: only the sandboxes on the
// page are read.
func TestPageOfManySandboxes(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	const many, most = 3000, 10
	for i := range many {
		r := ledger.Record{ID: fmt.Sprint("sb-", i), Created: time.Unix(int64((i*7)%many), 0)}
		w.add(w.newSandbox(r), event.SandboxCreated)
	}
	at := byage.Place{Created: time.Unix(many/2, 0), ID: "sb-none"}
	page := w.After(at, most)
	if len(page) != most {
		t.Fatalf("%d sandboxes on the page, want %d", len(page), most)
	}
	for i, info := range page {
		if want := time.Unix(int64(many/2+1+i), 0); !info.Created.Equal(want) {
			t.Errorf("sandbox %d was created at %v, want %v", i, info.Created, want)
		}
	}
	if n := len(w.After(byage.Place{Created: time.Unix(many, 0)}, most)); n != 0 {
		t.Errorf("%d sandboxes after the last one", n)
	}
	if all := w.List(); len(all) != many || all[0].Created.Unix() != 0 {
		t.Errorf("%d in the list, want %d, oldest first", len(all), many)
	}
	// One allocation for each Info, one for the page and one for the pointers. If an intended
	// change makes this check fail, put the new number here.
	const measured, reserve = 12, 4
	if n := testing.AllocsPerRun(20, func() { w.After(at, most) }); n > measured+reserve {
		t.Errorf("%v allocations for a page, want at most %d", n, measured+reserve)
	}
}
