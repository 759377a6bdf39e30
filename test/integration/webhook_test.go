package integration_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/forkd/forkd/client"
)

// TestWebhook uses a webhook to follow a sandbox through a crash of the daemon. The next daemon
// says that events may be missing, and then reports the sandbox that it has taken over.
func TestWebhook(t *testing.T) {
	got := make(chan client.Event, 1000)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var e client.Event
		if err := json.NewDecoder(r.Body).Decode(&e); err == nil && r.Header.Get("webhook-signature") != "" {
			got <- e
		}
	}))
	defer server.Close()
	dir := t.TempDir()
	config, secret := filepath.Join(dir, "webhooks.json"), filepath.Join(dir, "secret")
	for path, text := range map[string]string{
		secret: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n",
		config: `{"webhooks": [{"name": "test", "url": "` + server.URL + `", "secret_file": "` + secret +
			`", "labels": ["hooked"]}]}`,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d := load(t).start(t, withArgs("--webhooks", config))
	want := func(kind, id string) {
		t.Helper()
		select {
		case e := <-got:
			if e.Type != kind || e.SandboxID != id {
				t.Fatalf("%+v, want %s of %q", e, kind, id)
			}
		case <-t.Context().Done():
			t.Fatalf("no %s", kind)
		}
	}
	want("missed", "")
	d.kill(t, d.fork(t, 1)...) // the webhook reports no sandbox without the label
	forked, err := d.Fork(d.ctx(t, bakeLimit), client.ForkRequest{SnapshotTag: tag, N: 1,
		Labels: map[string]string{"hooked": "yes"}})
	if err != nil {
		t.Fatal(err)
	}
	id := forked.Sandboxes[0].ID
	want("sandbox.created", id)
	d.crash(t)
	d.launch(t)
	want("missed", "")
	want("sandbox.adopted", id)
	d.kill(t, forked.Sandboxes...)
	want("sandbox.deleted", id)
}
