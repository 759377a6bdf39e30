package move_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/guest/agent"
)

func TestMain(m *testing.M) { apirig.Main(m, agent.Main) }

// pair is two daemons, a and b.
type pair struct {
	t    *testing.T
	a, b *apirig.Rig
	id   string // sandbox of a
}

// startPair starts two daemons with the state in the given directories, which may be empty.
func startPair(t *testing.T, dirs [2]string, o apirig.Options) *pair {
	t.Helper()
	p := &pair{t: t}
	for i, rig := range []**apirig.Rig{&p.a, &p.b} {
		for _, key := range []string{"tokens.key", "links.key"} {
			if err := os.WriteFile(filepath.Join(dirs[i], key), make([]byte, 32), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		o.Agent, o.Node, o.Dir = apirig.SelfAgent, string("ab"[i]), dirs[i]
		*rig = apirig.Start(t, o)
	}
	return p
}

// newPair starts two new daemons, and forks a sandbox on a.
func newPair(t *testing.T, o apirig.Options, req client.ForkRequest) *pair {
	t.Helper()
	p := startPair(t, [2]string{t.TempDir(), t.TempDir()}, o)
	if _, err := p.a.Bake(t.Context(), p.a.Parent); err != nil {
		t.Fatal(err)
	}
	req.SnapshotTag, req.N = p.a.Parent.Tag, 1
	f, err := p.a.Fork(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	p.id = f.Sandboxes[0].ID
	return p
}

func (p *pair) hosts() (from, to client.MoveHost) {
	return client.MoveHost{Client: p.a.Client, Node: "a"}, client.MoveHost{Client: p.b.Client, Node: "b"}
}

// move moves the sandbox from a to b.
func (p *pair) move() (client.Sandbox, error) {
	from, to := p.hosts()
	return client.Move(p.t.Context(), p.id, from, to, func(string) (string, error) {
		return p.a.Server.Listener.Addr().String(), nil
	})
}

// where returns the names of the daemons that let clients use the sandbox.
func (p *pair) where() (names string) {
	p.t.Helper()
	for _, rig := range []*apirig.Rig{p.a, p.b} {
		if _, err := rig.Sandbox(p.t.Context(), p.id); err == nil {
			names += map[*apirig.Rig]string{p.a: "a", p.b: "b"}[rig]
		}
	}
	return names
}

// runs resumes the sandbox if necessary, and executes a command in it.
func runs(t *testing.T, rig *apirig.Rig, id string) {
	t.Helper()
	if _, err := rig.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if r, err := rig.Exec(t.Context(), id, client.ExecRequest{Args: []string{"true"}}); err != nil || r.ExitCode != 0 {
		t.Fatal(r, err)
	}
}

// states returns the tags of suspended states that a daemon stores.
func states(rig *apirig.Rig) (tags []string) {
	rig.Store.Quiesce()
	for _, s := range rig.Store.List() {
		if s.Transient {
			tags = append(tags, s.Tag)
		}
	}
	return tags
}
