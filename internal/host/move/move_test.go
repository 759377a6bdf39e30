package move_test

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/move"
	"github.com/forkd/forkd/internal/host/vmpool"
)

// step takes a step at a daemon. The test fails unless the error has the given code; empty: no error.
func step(t *testing.T, rig *apirig.Rig, id, code string, s client.MoveStep) (out client.SandboxMove) {
	t.Helper()
	out, err := rig.MoveStep(t.Context(), "", id, s)
	if got := codeOf(err); got != code {
		t.Fatalf("%s: %q, want %q: %v", s.Step, got, code, err)
	}
	return out
}

func codeOf(err error) string {
	var e *client.Error
	if errors.As(err, &e) {
		return e.Code
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// Between the steps no client can use the sandbox, and the key of another move does not open it.
func TestStepsAreOrdered(t *testing.T) {
	p := newPair(t, apirig.Options{}, client.ForkRequest{})
	registry := p.a.Server.Listener.Addr().String()
	step(t, p.a, p.id, "sandbox_state", client.MoveStep{Step: "leave", Node: "b"})
	if _, err := p.a.Suspend(t.Context(), p.id); err != nil {
		t.Fatal(err)
	}
	step(t, p.a, p.id, "conflict", client.MoveStep{Step: "leave", Node: "a"})
	step(t, p.a, p.id, "conflict", client.MoveStep{Step: "commit"})
	step(t, p.a, p.id, "conflict", client.MoveStep{Step: "free"})
	step(t, p.b, p.id, "sandbox_not_found", client.MoveStep{Step: "activate", Key: "x"})
	d := step(t, p.a, p.id, "", client.MoveStep{Step: "leave", Node: "b"}).Departure
	step(t, p.a, p.id, "conflict", client.MoveStep{Step: "leave", Node: "c"})
	if _, err := p.a.Resume(t.Context(), p.id); codeOf(err) != "sandbox_moving" {
		t.Errorf("resume while it leaves: %v", err)
	}
	if err := p.a.Kill(t.Context(), p.id); codeOf(err) != "sandbox_moving" {
		t.Errorf("kill while it leaves: %v", err)
	}
	arrive := client.MoveStep{Step: "arrive", Departure: d, Registry: registry,
		RegistryAuth: map[string]client.RegistryAuth{registry: {Username: "x", Password: apirig.Token}}}
	step(t, p.b, p.id, "", arrive)
	step(t, p.b, p.id, "", arrive) // again
	if m := step(t, p.a, p.id, "", client.MoveStep{Step: "cancel"}); m.Phase != "here" {
		t.Errorf("after a cancel the phase is %q", m.Phase)
	}
	runs(t, p.a, p.id)
	if _, err := p.a.Suspend(t.Context(), p.id); err != nil {
		t.Fatal(err)
	}
	// The cancelled move has left files on b. They belong to another key, and to an older state.
	d2 := step(t, p.a, p.id, "", client.MoveStep{Step: "leave", Node: "b"}).Departure
	arrive.Departure = d2
	step(t, p.b, p.id, "conflict", arrive)
	key := step(t, p.a, p.id, "", client.MoveStep{Step: "commit"}).Key
	step(t, p.a, p.id, "conflict", client.MoveStep{Step: "cancel"})
	step(t, p.b, p.id, "conflict", client.MoveStep{Step: "activate", Key: key})
	if on := p.where(); on != "" {
		t.Fatalf("clients can use the sandbox on %q", on)
	}
	if all, err := p.b.Sandboxes(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("b lists %v %v", all, err)
	}
	step(t, p.b, p.id, "", client.MoveStep{Step: "cancel"})
	step(t, p.b, p.id, "", arrive) // the first host still has everything
	step(t, p.b, p.id, "conflict", client.MoveStep{Step: "activate", Key: "x"})
	step(t, p.b, p.id, "", client.MoveStep{Step: "activate", Key: key})
	step(t, p.b, p.id, "", client.MoveStep{Step: "activate", Key: key})
	runs(t, p.b, p.id)
	step(t, p.a, p.id, "", client.MoveStep{Step: "free"})
	step(t, p.a, p.id, "", client.MoveStep{Step: "free"})
	m, err := p.b.Moves(t.Context())
	if err != nil || !slices.Equal(m.Nodes[0].Foreign, []string{p.id}) || len(m.Nodes[0].Moves) != 0 {
		t.Errorf("moves of b: %+v %v", m, err)
	}
	if err := p.b.Kill(t.Context(), p.id); err != nil {
		t.Fatal(err)
	}
	if m, err = p.b.Moves(t.Context()); err != nil || len(m.Nodes[0].Foreign) != 0 {
		t.Errorf("moves of b after the end of the sandbox: %+v %v", m, err)
	}
	text, _ := json.Marshal(m)
	if strings.Contains(string(text), key) {
		t.Error("the list of moves reveals a key")
	}
}

// If a sandbox has something that the other host could not keep, the move is refused before
// anything changes.
func TestRefusedMoves(t *testing.T) {
	p := newPair(t, apirig.Options{}, client.ForkRequest{})
	box := func(req client.ForkRequest) string {
		t.Helper()
		req.SnapshotTag, req.N = p.a.Parent.Tag, 1
		f, err := p.a.Fork(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		return f.Sandboxes[0].ID
	}
	w, err := p.a.CreateWorkspace(t.Context(), client.WorkspaceRequest{Name: "w", SnapshotTag: p.a.Parent.Tag})
	if err != nil {
		t.Fatal(err)
	}
	encrypted := box(client.ForkRequest{})
	if _, err := p.a.SuspendWith(t.Context(), encrypted, client.SuspendRequest{Encrypt: true}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ id, code, says string }{
		{w.LiveSandboxID, "sandbox_of_workspace", "workspace"},
		{encrypted, "conflict", "encryption"},
		{vmpool.IDPrefix + snapshot.NodeOf("a").NewID(), "sandbox_not_found", "not found"},
		{"x", "bad_request", "id"},
	} {
		_, err := p.a.MoveStep(t.Context(), "", c.id, client.MoveStep{Step: "leave", Node: "b"})
		if codeOf(err) != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.id, err)
		}
	}
	runs(t, p.a, encrypted)
	m, err := p.a.Moves(t.Context())
	if err != nil || len(m.Nodes[0].Moves) != 0 {
		t.Errorf("refused moves have left %+v %v", m, err)
	}
}

// Only a client with all rights moves sandboxes: an arriving sandbox brings its owner and its policy.
func TestRightsOfMoves(t *testing.T) {
	p := newPair(t, apirig.Options{Tokens: []auth.Token{{Name: "run", Scope: auth.Run}, {Name: "read", Scope: auth.Read},
		{Name: "team", Scope: auth.Run, Prefix: "team/"}}}, client.ForkRequest{})
	for name, token := range p.a.Tokens {
		cl, err := client.New(p.a.URL, token)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []string{"leave", "arrive", "commit", "activate", "free", "cancel"} {
			if _, err := cl.MoveStep(t.Context(), "", p.id, client.MoveStep{Step: s, Node: "b"}); codeOf(err) != "scope" {
				t.Errorf("%s with the token %s: %v", s, name, err)
			}
		}
		if _, err := cl.Moves(t.Context()); (codeOf(err) == "scope") != (name == "team") {
			t.Errorf("list with the token %s: %v", name, err)
		}
	}
	if _, err := p.move(); err != nil { // the sandbox did not move before, and runs
		t.Error(err)
	}
}

// A hostile host, or a hostile client with all rights, can make a sandbox arrive only in the form of a
// suspended sandbox that this daemon could have made.
func TestHostileDepartures(t *testing.T) {
	p := newPair(t, apirig.Options{}, client.ForkRequest{})
	registry := p.a.Server.Listener.Addr().String()
	if _, err := p.a.Suspend(t.Context(), p.id); err != nil {
		t.Fatal(err)
	}
	d := step(t, p.a, p.id, "", client.MoveStep{Step: "leave", Node: "b"}).Departure
	other := vmpool.IDPrefix + snapshot.NodeOf("a").NewID()
	auth := map[string]client.RegistryAuth{registry: {Username: "x", Password: apirig.Token}}
	set := func(path string, value any) func(map[string]any) {
		return func(file map[string]any) {
			in := file
			names := strings.Split(path, ".")
			for _, n := range names[:len(names)-1] {
				if in[n] == nil {
					in[n] = map[string]any{}
				}
				in = in[n].(map[string]any)
			}
			if in[names[len(names)-1]] = value; value == nil {
				delete(in, names[len(names)-1])
			}
		}
	}
	ref := map[string]any{"id": snapshot.NewID(), "tag": "../x"}
	top := map[string]any{"name": "../../x", "owner": snapshot.NewID()}
	for name, change := range map[string]func(map[string]any){
		"version":         set("version", 7),
		"unknown field":   set("sandbox.extra", 1),
		"no network":      set("sandbox.network", nil),
		"no mode":         set("sandbox.network.mode", nil),
		"bad mode":        set("sandbox.network.mode", "everything"),
		"id":              set("sandbox.id", other),
		"tag of a parent": set("sandbox.snapshot_tag", p.a.Parent.Tag),
		"another tag":     set("sandbox.snapshot_tag", "suspended-"+other+"-1"),
		"path in tag":     set("sandbox.snapshot_tag", d.Tag+"/../x"),
		"snapshot":        set("sandbox.snapshot_id", "../x"),
		"origin":          set("sandbox.origin", "../x"),
		"hostname":        set("sandbox.hostname", "a b\n"),
		"owner":           set("sandbox.owner", strings.Repeat("x", 300)),
		"pid":             set("sandbox.pid", 1),
		"protocol":        set("sandbox.protocol", 1),
		"top":             set("sandbox.top", "../../x"),
		"tops":            set("sandbox.tops", -1),
		"frozen":          set("sandbox.frozen", []any{top}),
		"suspends":        set("sandbox.suspends", 0),
		"volumes":         set("sandbox.volumes", []any{map[string]any{"name": "v", "path": "/v", "mode": "copy"}}),
		"at":              set("sandbox.at", ref),
		"rebased":         set("sandbox.rebased", map[string]any{"id": snapshot.NewID(), "line": 1}),
		"pending":         set("sandbox.pending", map[string]any{"name": "../x", "owner": "x", "swaps": 1}),
		"paused":          set("sandbox.paused", true),
		"restoring":       set("sandbox.restoring", true),
		"label":           set("sandbox.labels", map[string]any{"a\n": "b"}),
		"env":             set("sandbox.env", map[string]any{"A=B": "b"}),
		"hook":            set("sandbox.hooks", map[string]any{"after_fork": map[string]any{"args": []any{}}}),
		"annotation":      set("sandbox.annotation", map[string]any{"docker": map[string]any{}}),
		"two annotations": set("sandbox.annotation", map[string]any{"timeout": 1, "Docker": map[string]any{}}),
		"of a build":      set("sandbox.annotation", map[string]any{"timeout": 1, "build": "x"}),
		"year 10000":      set("sandbox.created", "9999-12-31T23:59:59-23:59"),
		"future":          set("sandbox.created", "2900-01-01T00:00:00Z"),
		"year -1":         set("sandbox.expires", "0000-01-01T00:00:00+23:59"),
		"owner's line":    set("sandbox.owner", "a\nb"),
		"memory":          set("sandbox.memory_bytes", 1<<20),
		"limits":          set("sandbox.limits", map[string]any{"cpus": -1}),
	} {
		var file map[string]any
		if err := json.Unmarshal(d.Record, &file); err != nil {
			t.Fatal(err)
		}
		change(file)
		bad := *d
		bad.Record, _ = json.Marshal(file)
		_, err := p.b.MoveStep(t.Context(), "", p.id, client.MoveStep{Step: "arrive", Departure: &bad, Registry: registry,
			RegistryAuth: auth})
		if codeOf(err) != "invalid_field" {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, change := range map[string]func(*client.Departure){
		"to":        func(d *client.Departure) { d.To = "c" },
		"from":      func(d *client.Departure) { d.From = "b" },
		"lock":      func(d *client.Departure) { d.Lock = "" },
		"token key": func(d *client.Departure) { d.TokenKey = "x" },
		"link key":  func(d *client.Departure) { d.LinkKey = "x" },
		"no record": func(d *client.Departure) { d.Record = json.RawMessage("{}") },
		"reference": func(d *client.Departure) { d.Tag = "x@y" },
	} {
		bad := *d
		change(&bad)
		_, err := p.b.MoveStep(t.Context(), "", p.id, client.MoveStep{Step: "arrive", Departure: &bad, Registry: registry,
			RegistryAuth: auth})
		if codeOf(err) != "invalid_field" {
			t.Errorf("%s: %v", name, err)
		}
	}
	good := client.MoveStep{Step: "arrive", Departure: d, Registry: registry, RegistryAuth: auth}
	if _, err := p.b.MoveStep(t.Context(), "", other, good); codeOf(err) != "invalid_field" {
		t.Errorf("under another id: %v", err)
	}
	resp, err := http.Post(p.b.URL+"/v1/moves/"+p.id, "application/json", strings.NewReader(`{"step":"arrive"}`))
	if err != nil || resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a token: %v %v", resp, err)
	}
	resp.Body.Close()
	if list := states(p.b); len(list) > 0 || p.where() != "" {
		t.Errorf("refused arrivals have left %v", list)
	}
	step(t, p.b, p.id, "", good)
	if _, err := p.move(); err != nil {
		t.Fatal(err)
	}
	runs(t, p.b, p.id)
}

// A key opens a sandbox only once. A client that repeats the steps of a move later gets no copy of a
// sandbox that runs on another host by then. It also does not bring back a sandbox that has ended.
func TestRepeatedStepsMakeNoCopy(t *testing.T) {
	p := newPair(t, apirig.Options{}, client.ForkRequest{})
	if _, err := p.a.Suspend(t.Context(), p.id); err != nil {
		t.Fatal(err)
	}
	arriveAt := func(from *apirig.Rig, d *client.Departure) client.MoveStep {
		registry := from.Server.Listener.Addr().String()
		return client.MoveStep{Step: "arrive", Departure: d, Registry: registry,
			RegistryAuth: map[string]client.RegistryAuth{registry: {Username: "x", Password: apirig.Token}}}
	}
	d := step(t, p.a, p.id, "", client.MoveStep{Step: "leave", Node: "b"}).Departure
	step(t, p.b, p.id, "", arriveAt(p.a, d))
	key := step(t, p.a, p.id, "", client.MoveStep{Step: "commit"}).Key
	step(t, p.b, p.id, "", client.MoveStep{Step: "activate", Key: key})
	step(t, p.a, p.id, "", client.MoveStep{Step: "free"})
	from, to := p.hosts()
	back := func(string) (string, error) { return p.b.Server.Listener.Addr().String(), nil }
	if _, err := client.Move(t.Context(), p.id, to, from, back); err != nil {
		t.Fatal(err)
	}
	// The first host has the same suspended state again, so only the key is old.
	step(t, p.b, p.id, "", arriveAt(p.a, d))
	step(t, p.b, p.id, "", client.MoveStep{Step: "activate", Key: key})
	if on := p.where(); on != "a" {
		t.Fatalf("clients can use the sandbox on %q", on)
	}

	d = step(t, p.a, p.id, "", client.MoveStep{Step: "leave", Node: "b"}).Departure
	step(t, p.b, p.id, "", arriveAt(p.a, d))
	key = step(t, p.a, p.id, "", client.MoveStep{Step: "commit"}).Key
	step(t, p.b, p.id, "", client.MoveStep{Step: "activate", Key: key}) // the step free fails
	if err := p.b.Kill(t.Context(), p.id); err != nil {
		t.Fatal(err)
	}
	if _, err := p.move(); codeOf(err) != "sandbox_not_found" {
		t.Errorf("repeat the move of a sandbox that was deleted: %v", err)
	}
	if on := p.where(); on != "" || len(states(p.a)) > 0 || len(states(p.b)) > 0 {
		t.Errorf("after its deletion, the sandbox is on %q; states %v %v", on, states(p.a), states(p.b))
	}
}

// If the new host has lost the files that it has fetched, it says so instead of using up the key, after which the
// first host would remove its files.
func TestLostFilesAreFetchedAgain(t *testing.T) {
	p := newPair(t, apirig.Options{}, client.ForkRequest{})
	if _, err := p.a.Suspend(t.Context(), p.id); err != nil {
		t.Fatal(err)
	}
	registry := p.a.Server.Listener.Addr().String()
	d := step(t, p.a, p.id, "", client.MoveStep{Step: "leave", Node: "b"}).Departure
	arrive := client.MoveStep{Step: "arrive", Departure: d, Registry: registry,
		RegistryAuth: map[string]client.RegistryAuth{registry: {Username: "x", Password: apirig.Token}}}
	step(t, p.b, p.id, "", arrive)
	key := step(t, p.a, p.id, "", client.MoveStep{Step: "commit"}).Key
	if err := os.RemoveAll(filepath.Join(filepath.Dir(p.b.TokenFile), "data", p.id)); err != nil {
		t.Fatal(err)
	}
	step(t, p.b, p.id, "conflict", client.MoveStep{Step: "activate", Key: key})
	step(t, p.b, p.id, "conflict", arrive) // gives up what is left
	p.b.Store.Quiesce()
	if _, err := p.move(); err != nil {
		t.Fatal(err)
	}
	runs(t, p.b, p.id)
}

// If a move cannot be undone at the start of the daemon, for example on a full disk, the daemon starts anyway.
func TestStartWithoutRoom(t *testing.T) {
	dir, id := t.TempDir(), vmpool.IDPrefix+snapshot.NodeOf("a").NewID()
	p, err := record.EncodeMove(&record.Move{ID: id, Phase: record.MoveArriving, Node: "a", Since: time.Now(), Lock: "x"})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, id+".json"), p, 0o600)
	}
	if err == nil {
		err = os.MkdirAll(filepath.Join(dir, id+".x.opened", "cannot be removed"), 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	b, err := move.Open(move.Config{Dir: dir, DataDir: t.TempDir(), KeyDir: dir, Node: "b",
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if list := b.List(); len(list) != 1 || b.Away(id) == nil {
		t.Errorf("the daemon has forgotten the move: %+v", list)
	}
}
