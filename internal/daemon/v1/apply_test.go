package v1_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/diffproto"
)

// applier is a guest that freezes its file system when it is asked to, and keeps the archives that
// it receives.
type applier struct {
	mu       sync.Mutex
	status   int
	answer   string
	archives []string
	cut      bool // the last archive had no end
}

func (*applier) Forked(context.Context, agentproto.Forked) (*agentproto.Unique, error) {
	return nil, nil
}

func (g *applier) Dial(_ context.Context, port uint32) (net.Conn, error) {
	ours, theirs := net.Pipe()
	go func() {
		defer theirs.Close()
		in := bufio.NewReader(theirs)
		if port == agentproto.ControlPort {
			for {
				if _, err := in.ReadBytes('\n'); err != nil {
					return
				}
				_, _ = io.WriteString(theirs, "{}\n")
			}
		}
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		archive, err := io.ReadAll(req.Body)
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.cut = err != nil; g.cut {
			return
		}
		g.archives = append(g.archives, req.Method+" "+req.URL.Path+" "+string(archive))
		_, _ = fmt.Fprintf(theirs, "HTTP/1.1 %d x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			g.status, len(g.answer), g.answer)
	}()
	return ours, nil
}

// regular is a file of an entry.
var regular = diffproto.Node{Type: diffproto.Regular, Mode: 0o644}

func TestApply(t *testing.T) {
	both := &diffproto.Entry{Path: "/srv/b", Old: regular, Base: diffproto.Regular, Conflict: true}
	odd := &diffproto.Entry{Path: "/srv/\xff", New: regular}
	guest := &applier{status: http.StatusOK, answer: `{"files":2}`}
	r := start(t, apirig.Options{Guest: guest, Diff: vmfake.Differs(both, odd)})
	s := box(t, r)
	forked, err := r.Fork(t.Context(), client.ForkRequest{SnapshotTag: r.Parent.Tag, N: 1})
	if err != nil {
		t.Fatal(err)
	}
	from := forked.Sandboxes[0].ID
	apply := func(req client.ApplyRequest) (client.Applied, error) {
		req.From = from
		a, err := r.Apply(t.Context(), s.ID, req)
		a.ApplyMS = 0
		return a, err
	}

	_, err = apply(client.ApplyRequest{})
	var problem *client.Error
	if !errors.Is(err, client.ErrApplyConflict) || !errors.As(err, &problem) || len(problem.Conflicts) != 1 ||
		problem.Conflicts[0] != (client.ApplyFile{Path: "/srv/b", Change: "deleted", Conflict: true, From: "deleted",
			Onto: "changed"}) || problem.Status != http.StatusConflict {
		t.Errorf("%+v", err)
	}
	a, err := apply(client.ApplyRequest{DryRun: true})
	if err != nil || a.Applied || a.Conflicts != 1 || a.Changed != 1 || len(a.Files) != 2 || a.From != from ||
		a.Onto != s.ID || a.Files[1].Path != "/srv/\ufffd" || a.Files[1].PathBase64 != "L3Nydi//" ||
		a.Files[1].Change != "added" || a.Omitted {
		t.Errorf("%+v, %v", a, err)
	}
	if guest.archives != nil {
		t.Errorf("the guest has received %q", guest.archives)
	}
	for _, prefer := range []string{"from", "onto"} {
		guest.archives = nil
		a, err := apply(client.ApplyRequest{Prefer: prefer, Paths: []string{"/srv", "/etc/"}})
		if err != nil || !a.Applied || a.Conflicts != 1 || a.Files[0].Kept != (prefer == "onto") {
			t.Errorf("%s: %+v, %v", prefer, a, err)
		}
		if len(guest.archives) != 1 || !strings.HasPrefix(guest.archives[0], "POST /apply ") ||
			!strings.Contains(guest.archives[0], "srv/\xff") ||
			strings.Contains(guest.archives[0], "srv/.wh.b") != (prefer == "from") {
			t.Errorf("%s: the guest has received %.60q", prefer, guest.archives)
		}
	}
	for answer, code := range map[string]client.ErrorCode{
		`{"changed":["/srv/a"],"error":"written"}`:      client.ErrApplyConflict,
		`{"incomplete":true,"error":"half of it"}`:      client.ErrApplyIncomplete,
		`{"error":"no reason"}`:                         client.ErrSandboxFailed,
		`{"incomplete":true`:                            "",
		`{"changed":[` + strings.Repeat(`"/a",`, 1e5):   "",
		`{"files":2,"error":"` + strings.Repeat("x", 9): "",
	} {
		guest.answer = answer
		if a, err := apply(client.ApplyRequest{Prefer: "from"}); err == nil || code != "" && !errors.Is(err, code) {
			t.Errorf("%.40s: %+v, %v", answer, a, err)
		}
	}
	for status, code := range map[int]client.ErrorCode{http.StatusNotFound: client.ErrSnapshotUnusable,
		http.StatusInsufficientStorage: client.ErrNoSpace} {
		guest.status = status
		if _, err := apply(client.ApplyRequest{Prefer: "from"}); !errors.Is(err, code) {
			t.Errorf("%d: %v", status, err)
		}
	}
	log, err := os.ReadFile(r.AuditLog)
	if err != nil || !strings.Contains(string(log), `"from":"`+from+`"`) {
		t.Errorf("the audit log lacks the other side: %v", err)
	}
	left(t, r, 1, 2)
}

func TestApplyRefuses(t *testing.T) {
	r := start(t, apirig.Options{Guest: &applier{status: http.StatusOK, answer: `{"files":1}`}})
	s := box(t, r)
	twin, err := r.Fork(t.Context(), client.ForkRequest{SnapshotTag: r.Parent.Tag, N: 1})
	if err != nil {
		t.Fatal(err)
	}
	from := twin.Sandboxes[0].ID
	many := make([]string, diffproto.MaxPaths+1)
	for i := range many {
		many[i] = "/" + strings.Repeat("x", i)
	}
	for field, req := range map[string]client.ApplyRequest{
		"from":      {},
		"base":      {From: from, Base: "no tag"},
		"prefer":    {From: from, Prefer: "ours"},
		"paths":     {From: from, Paths: []string{"srv"}},
		"max_files": {From: from, MaxFiles: new(-1)},
	} {
		var problem *client.Error
		if _, err := r.Apply(t.Context(), s.ID, req); !errors.As(err, &problem) || problem.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	var problem *client.Error
	if _, err := r.Apply(t.Context(), s.ID, client.ApplyRequest{From: from, Paths: many}); !errors.As(err, &problem) ||
		problem.Field != "paths" {
		t.Errorf("many paths: %v", err)
	}
	if _, err := r.Apply(t.Context(), s.ID, client.ApplyRequest{From: s.ID}); !errors.As(err, &problem) ||
		problem.Field != "from" {
		t.Errorf("onto itself: %v", err)
	}
	if _, err := r.Apply(t.Context(), s.ID, client.ApplyRequest{From: from, Base: "none"}); !errors.Is(err,
		client.ErrSnapshotNotFound) {
		t.Errorf("%v", err)
	}
	if _, err := r.Pause(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Apply(t.Context(), s.ID, client.ApplyRequest{From: from}); !errors.Is(err, client.ErrSandboxState) {
		t.Errorf("onto a paused sandbox: %v", err)
	}
	if a, err := r.Apply(t.Context(), from, client.ApplyRequest{From: s.ID}); err != nil || !a.Applied {
		t.Errorf("from a paused sandbox: %+v, %v", a, err)
	}
	left(t, r, 1, 2)
}

// If the archive breaks off, the guest does not receive the end of the archive, and so applies
// nothing.
func TestApplyOfAHostileDisk(t *testing.T) {
	guest := &applier{status: http.StatusOK, answer: `{"files":1}`}
	r := start(t, apirig.Options{Guest: guest, Diff: func(_ *vmfake.VMM, c net.Conn) {
		req, err := diffproto.ReadRequest(c)
		if err != nil || diffproto.ReadRanges(c, func(diffproto.Range) error { return nil }) != nil || req.Merge == nil {
			return
		}
		_ = diffproto.WriteDone(c, diffproto.Done{Added: 1})
		_, _ = diffproto.NewPieceWriter(c).Write(make([]byte, 1<<10))
	}})
	s := box(t, r)
	if a, err := r.Apply(t.Context(), s.ID, client.ApplyRequest{From: r.Parent.Tag}); err == nil {
		t.Errorf("%+v", a)
	}
	guest.mu.Lock()
	defer guest.mu.Unlock()
	if len(guest.archives) != 0 {
		t.Errorf("the guest takes %d bytes for a whole archive", len(guest.archives[0]))
	}
	left(t, r, 1, 1)
}

// A client can apply only changes of sandboxes and snapshots that it sees, and only to a sandbox
// that it may use.
func TestApplyOfOtherClients(t *testing.T) {
	team := func(name string, prefix owner.Prefix) auth.Token {
		return auth.Token{Name: name, Scope: auth.Run, Prefix: prefix}
	}
	r := start(t, apirig.Options{Guest: &applier{status: http.StatusOK, answer: `{"files":1}`},
		Tokens: []auth.Token{team("red", "red/"), team("blue", "blue/")}})
	own := box(t, r)
	as := func(name string) *client.Client {
		cl, err := client.New(r.URL, r.Tokens[name])
		if err != nil {
			t.Fatal(err)
		}
		return cl
	}
	fork := func(name string) string {
		f, err := as(name).Fork(t.Context(), client.ForkRequest{SnapshotTag: r.Parent.Tag, N: 1})
		if err != nil {
			t.Fatal(err)
		}
		return f.Sandboxes[0].ID
	}
	red, second, blue := fork("red"), fork("red"), fork("blue")
	if a, err := as("red").Apply(t.Context(), red, client.ApplyRequest{From: second}); err != nil || !a.Applied {
		t.Errorf("%+v, %v", a, err)
	}
	for _, c := range []struct{ onto, from string }{{blue, red}, {red, blue}, {own.ID, red}, {red, own.ID}} {
		if _, err := as("red").Apply(t.Context(), c.onto, client.ApplyRequest{From: c.from}); !errors.Is(err,
			client.ErrSandboxNotFound) {
			t.Errorf("%s onto %s: %v", c.from, c.onto, err)
		}
	}
}
