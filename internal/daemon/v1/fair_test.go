package v1_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
)

// If one token has taken all the places that it is allowed to take, another token is still served.
func TestOneTokenDoesNotKeepAnotherOut(t *testing.T) {
	silent := mute{make(chan struct{}, 10)}
	r := start(t, apirig.Options{Guest: silent, Limits: face.Limits{Calls: 4, PerSandbox: 4, Followers: 4},
		Tokens: []auth.Token{{Name: "a", Scope: auth.Run}, {Name: "b", Scope: auth.Run}}})
	boxes := fork(t, r, 2)
	as := func(token string) *client.Client {
		cl, err := client.New(r.URL, r.Tokens[token])
		if err != nil {
			t.Fatal(err)
		}
		return cl
	}
	ctx, cancel := context.WithCancel(t.Context())
	follow := func(token string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL+"/v1/events", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+r.Tokens[token])
		resp, err := r.Server.Client().Do(req) // returns when the request is no longer queued
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		return resp.StatusCode
	}
	done := make(chan struct{})
	stick := func(token string) {
		go func() {
			_, _ = as(token).Exec(ctx, boxes[0].ID, client.ExecRequest{Args: []string{"true"}, TimeoutSecs: 3600})
			done <- struct{}{}
		}()
		<-silent.dialed
	}
	for range 3 {
		stick("a")
	}
	if _, err := as("a").Ping(ctx, boxes[1].ID); !client.IsStatus(err, http.StatusServiceUnavailable) {
		t.Errorf("one more of the same token: %v", err)
	}
	stick("b")
	t.Cleanup(func() {
		cancel()
		for range 4 {
			<-done
		}
	})
	for i := range 4 {
		want := http.StatusOK
		if i == 3 {
			want = http.StatusServiceUnavailable
		}
		if got := follow("a"); got != want {
			t.Errorf("stream of events %d of one token: %d, want %d", i, got, want)
		}
	}
	if got := follow("b"); got != http.StatusOK {
		t.Errorf("a stream of events of another token: %d", got)
	}
}
