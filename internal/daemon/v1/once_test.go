package v1_test

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
)

func TestIdempotencyKey(t *testing.T) {
	cl, url, id := forked(t)
	send := func(path, key, body string) (status int, answer string, replayed bool) {
		t.Helper()
		req, err := http.NewRequest(http.MethodPost, url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+apirig.Token)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", key)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		p, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(p), resp.Header.Get("Idempotency-Replayed") == "true"
	}
	const fork = `{"snapshot_tag":"a.b","n":2}`
	status, first, replayed := send("/v1/forks", "k1", fork)
	if status != http.StatusCreated || replayed {
		t.Fatalf("%d %s", status, first)
	}
	if status, again, replayed := send("/v1/forks", "k1", fork); status != http.StatusCreated || again != first ||
		!replayed {
		t.Errorf("again: %d %s, replayed %v; want %s", status, again, replayed, first)
	}
	if list, err := cl.Sandboxes(t.Context()); err != nil || len(list) != 3 {
		t.Errorf("%d sandboxes, %v", len(list), err)
	}
	for _, c := range []struct {
		path, key, body string
		status          int
		code            string
	}{
		{"/v1/forks", "k1", `{"snapshot_tag":"a.b"}`, 422, "idempotency_key_reused"},
		{"/v1/sandboxes", "k1", fork, 201, ""}, // the path differs
		{"/v1/forks", "k2", `{"snapshot_tag":"none"}`, 404, "snapshot_not_found"},
		{"/v1/forks", "k2", fork, 201, ""}, // the first request with this key failed
		{"/v1/forks", "a b", fork, 400, "invalid_field"},
		{"/v1/forks", strings.Repeat("x", 256), fork, 400, "invalid_field"},
		{"/v1/sandboxes/" + id + "/branch", "k1", `{"tag":"b1"}`, 201, ""},
		{"/v1/sandboxes/" + id + "/branch", "k1", `{"tag":"b1"}`, 201, ""}, // without the key the answer would be 409
	} {
		if status, answer, _ := send(c.path, c.key, c.body); status != c.status || !strings.Contains(answer, c.code) {
			t.Errorf("%s %.20s %s: %d %s, want %d %s", c.path, c.key, c.body, status, answer, c.status, c.code)
		}
	}
}

// A kept answer belongs to the name of a token: the holder of a new token with that name receives
// the answer, and the holder of a token with another name does not.
func TestKeysBelongToTheName(t *testing.T) {
	r := start(t, apirig.Options{Tokens: []auth.Token{{Name: "ci", Scope: auth.Run}}})
	if _, err := r.Bake(t.Context(), r.Parent); err != nil {
		t.Fatal(err)
	}
	send := func(token string) (answer string, replayed bool) {
		t.Helper()
		req, err := http.NewRequest(http.MethodPost, r.URL+"/v1/forks", strings.NewReader(`{"snapshot_tag":"a.b"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", "k")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		p, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusCreated {
			t.Fatalf("%s %s, %v", resp.Status, p, err)
		}
		return string(p), resp.Header.Get("Idempotency-Replayed") == "true"
	}
	first, _ := send(r.Tokens["ci"])
	file, err := os.ReadFile(r.TokenFile)
	if err == nil {
		file, err = auth.Remove(file, "ci")
	}
	added := make(map[string]string)
	for _, name := range []string{"ci", "other"} {
		if err == nil {
			file, added[name], err = auth.Add(file, auth.Token{Name: name, Scope: auth.Run}, false)
		}
	}
	if err := errors.Join(err, os.WriteFile(r.TokenFile, file, 0o600)); err != nil {
		t.Fatal(err)
	}
	if answer, replayed := send(added["ci"]); answer != first || !replayed {
		t.Errorf("with a new token of the same name: replayed %v", replayed)
	}
	if answer, replayed := send(added["other"]); answer == first || replayed {
		t.Errorf("with a token of another name: replayed %v", replayed)
	}
}
