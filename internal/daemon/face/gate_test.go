package face

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/forkd/forkd/internal/daemon/auth"
)

// If clients hold all places, the operator still finds a place, but other clients do not.
func TestOperatorFindsAPlace(t *testing.T) {
	own := fmt.Sprintf("uid:%d", os.Getuid())
	g := NewGate(Class{Total: 8, Client: 4, Sandbox: 1})
	for i := range 8 {
		leave, err := g.Enter(fmt.Sprintf("token:%d", i/4), "")
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
	}
	ask := func(who string, h Handler) (status int) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		w := httptest.NewRecorder()
		g.Serve(w, r.WithContext(auth.With(r.Context(), auth.Principal{Who: who, Scope: auth.Admin})), h,
			func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusServiceUnavailable) })
		return w.Code
	}
	answer := func(w http.ResponseWriter, _ *http.Request) error {
		w.WriteHeader(http.StatusOK)
		return nil
	}
	for who, want := range map[string]int{"uid:0": 200, own: 200, "uid:4242": 503, "token:ops": 503, "token:uid:0": 503,
		"cert:0": 503, "local": 503, "": 503} {
		for range 3 { // each request returns its place
			if got := ask(who, answer); got != want {
				t.Errorf("%q was answered with %d, want %d", who, got, want)
			}
		}
	}
	// The number of the operator's places is limited.
	ask("uid:0", func(w http.ResponseWriter, r *http.Request) error {
		if got := ask("uid:0", answer); got != http.StatusServiceUnavailable {
			t.Errorf("a second request beyond the places was answered with %d", got)
		}
		return answer(w, r)
	})
}

// Even if two addresses keep all of their places for requests without a token, the probes of a
// third address find a place.
func TestProbesFindAPlace(t *testing.T) {
	f := New(Config{})
	for _, attacker := range []string{"from 192.0.2.1", "from 192.0.2.2"} {
		for {
			leave, err := f.Open.Enter(attacker, "")
			if err != nil {
				break
			}
			defer leave()
		}
	}
	leave, err := f.Open.Enter("from 192.0.2.3", "")
	if err != nil {
		t.Fatal(err)
	}
	leave()
}
