package v1_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
)

// While a command has a secret, its sandbox can neither be suspended nor be branched with its
// memory, because the secret would be written to disk. The same holds if all sandboxes are to be
// suspended before the daemon's pod ends. The build continues.
func TestSandboxesWithSecretsAreNotSuspended(t *testing.T) {
	r, dir := builder(t)
	done := make(chan error, 1)
	go func() {
		_, _, err := built(t, r.Client, client.BuildRequest{Tag: "made", Secrets: map[string][]byte{"tok": []byte("hidden")},
			Dockerfile: "FROM a.b\nRUN --mount=type=secret,id=tok,env=TOK touch " + dir + "/begun; " +
				"while [ ! -e " + dir + "/end ]; do sleep 0.01; done\n"}, nil)
		done <- err
	}()
	for _, err := os.Stat(dir + "/begun"); err != nil; _, err = os.Stat(dir + "/begun") {
		select {
		case err := <-done:
			t.Fatal(err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	list, err := r.Sandboxes(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	id := list[0].ID
	_, suspended := r.Suspend(t.Context(), id)
	_, branched := r.Branch(t.Context(), id, client.BranchRequest{Tag: "copy"})
	_, forked := r.Fork(t.Context(), client.ForkRequest{SourceID: id, N: 1})
	for what, err := range map[string]error{"suspended": suspended, "branched": branched, "forked": forked} {
		var refused *client.Error
		if !errors.As(err, &refused) || refused.Code != "sandbox_state" || !strings.Contains(err.Error(), "a secret") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := os.WriteFile(dir+"/end", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("the build: %v", err)
	}
	tags, err := r.Snapshots(t.Context())
	for _, s := range tags {
		if s.Tag == "copy" || strings.HasPrefix(s.Tag, "suspended-") {
			t.Errorf("saved: %+v", s)
		}
	}
	if err != nil {
		t.Error(err)
	}
}
