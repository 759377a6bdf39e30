package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/forkd/forkd/client"
)

// If the suspension of one sandbox fails or never ends, the other sandboxes are still suspended.
func TestSuspensionsAreSideBySide(t *testing.T) {
	var out bytes.Buffer
	cmd := &cobra.Command{}
	cmd.SetOut(&out)
	others := make(chan struct{}, 3)
	err := eachOf(cmd, &common{}, 2, []string{"stuck", "one", "bad", "two"}, func(id string) (string, error) {
		if id == "stuck" {
			for range cap(others) {
				select {
				case <-others:
				case <-time.After(30 * time.Second):
					return "", errors.New("the others wait")
				}
			}
			return id, nil
		}
		defer func() { others <- struct{}{} }()
		if id == "bad" {
			return "", errors.New("bad is refused")
		}
		return id, nil
	}, func(id string) string { return id + " suspended" }, nil)
	if err == nil || err.Error() != "bad is refused" {
		t.Errorf("got %v", err)
	}
	if text := out.String(); text != "one suspended\ntwo suspended\nstuck suspended\n" {
		t.Errorf("%s", text)
	}
}

// suspender returns a suspendAll for a fake daemon. The daemon answers the nth request to suspend a
// sandbox with the status that suspend(id, nth, r) returns. The daemon reports the given state for
// every sandbox.
func suspender(t *testing.T, suspend func(id string, nth int, r *http.Request) (status int), state string) *suspendAll {
	t.Helper()
	var mu sync.Mutex
	asked := make(map[string]int)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, verb, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v1/sandboxes/"), "/")
		if verb == "" {
			_ = json.NewEncoder(w).Encode(client.Sandbox{ID: id, State: state})
			return
		}
		mu.Lock()
		asked[id]++
		nth := asked[id]
		mu.Unlock()
		status := suspend(id, nth, r)
		if status == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", "1")
		}
		w.WriteHeader(status)
		if status != http.StatusOK {
			_, _ = io.WriteString(w, `{"error": "no"}`)
			return
		}
		_ = json.NewEncoder(w).Encode(client.Sandbox{ID: id, State: "suspended"})
	}))
	t.Cleanup(s.Close)
	cl, err := client.New(s.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	return newSuspendAll(cl, 0)
}

// hang returns when the client has disconnected, so that the request has no answer.
func hang(r *http.Request) int {
	<-r.Context().Done()
	return http.StatusOK
}

// A suspension may wait behind other suspensions for longer than one request may take. The client
// then repeats the request until the sandbox is saved.
func TestSuspensionsThatWaitAreRepeated(t *testing.T) {
	place := make(chan struct{}, 1) // the daemon suspends one sandbox at a time
	a := suspender(t, func(_ string, _ int, r *http.Request) int {
		select {
		case place <- struct{}{}:
			defer func() { <-place }()
			time.Sleep(60 * time.Millisecond)
			return http.StatusOK
		case <-r.Context().Done():
			return http.StatusOK
		}
	}, "running")
	a.turn = 150 * time.Millisecond
	var all errgroup.Group
	for i := range 8 {
		all.Go(func() error {
			_, err := a.suspend(t.Context(), "", fmt.Sprint("sb-", i))
			return err
		})
	}
	if err := all.Wait(); err != nil {
		t.Error(err)
	}
}

// If sandboxes cannot be saved, the client gives them up, even if they first take the places of all
// concurrent requests. All other sandboxes are saved.
func TestStuckSandboxesAreGivenUp(t *testing.T) {
	a := suspender(t, func(id string, _ int, r *http.Request) int {
		if strings.Contains(id, "stuck") {
			return hang(r)
		}
		return http.StatusOK
	}, "running")
	a.turn = 50 * time.Millisecond
	var stuck, good errgroup.Group
	for i := range suspendTurns {
		stuck.Go(func() error {
			_, err := a.suspend(t.Context(), "", fmt.Sprint("sb-stuck", i))
			if err == nil || !strings.Contains(err.Error(), "sb-stuck") ||
				!strings.Contains(err.Error(), "not done within 50ms") {
				return fmt.Errorf("a stuck sandbox: got %w", err)
			}
			return nil
		})
	}
	for i := range 8 {
		good.Go(func() error {
			_, err := a.suspend(t.Context(), "", fmt.Sprint("sb-good", i))
			return err
		})
	}
	if err := errors.Join(good.Wait(), stuck.Wait()); err != nil {
		t.Error(err)
	}
}

// If all sandboxes of a user take long, for example because of their hooks, the sandboxes of other
// owners are still suspended, even if the user has several names. When only one owner is left, its
// sandboxes get all turns.
func TestOwnersShareTheTurns(t *testing.T) {
	a := suspender(t, func(id string, _ int, r *http.Request) int {
		if strings.Contains(id, "slow") {
			return hang(r)
		}
		return http.StatusOK
	}, "running")
	greedy := []string{"greedy", "and-greedy", "too-greedy"}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 2 * suspendTurns {
		a.turns.expect("other")
		for _, owner := range greedy {
			a.turns.expect(owner)
		}
	}
	var slow sync.WaitGroup
	for i := range 2 * suspendTurns {
		for _, owner := range greedy {
			slow.Go(func() { _, _ = a.suspend(ctx, owner, fmt.Sprint("sb-slow-", owner, i)) })
		}
	}
	taken := func() int {
		a.turns.mu.Lock()
		defer a.turns.mu.Unlock()
		return a.turns.taken
	}
	for taken() < len(greedy)*suspendTurns/4 {
		time.Sleep(time.Millisecond)
	}
	for i := range 2 * suspendTurns {
		if _, err := a.suspend(t.Context(), "other", fmt.Sprint("sb-", i)); err != nil {
			t.Error(err)
		}
	}
	if n := taken(); n < len(greedy)*suspendTurns/4 {
		t.Errorf("%d turns are taken", n)
	}
	cancel()
	slow.Wait()
	if n := len(a.turns.left); n != 0 || taken() != 0 {
		t.Errorf("%d owners and %d turns are left", n, taken())
	}

	last := newSuspendPlaces()
	for range 2 * suspendTurns {
		last.expect("last")
	}
	last.expect("first")
	for range suspendTurns / 2 {
		if err := last.take(t.Context(), "last"); err != nil {
			t.Fatal(err)
		}
	}
	over, stop := context.WithCancel(t.Context())
	stop()
	if err := last.take(over, "last"); err == nil {
		t.Error("an owner has more than half of the turns beside another owner")
	}
	waits := make(chan error)
	go func() { waits <- last.take(t.Context(), "last") }()
	last.finish("first")
	if err := <-waits; err != nil {
		t.Fatal(err)
	}
	for range suspendTurns/2 - 1 {
		if err := last.take(t.Context(), "last"); err != nil {
			t.Fatal(err)
		}
	}
}

// With --within, a sandbox may take all of the given time, even if no other sandbox is saved during
// that time.
func TestSuspensionsHaveOneDeadline(t *testing.T) {
	a := suspender(t, func(id string, nth int, r *http.Request) int {
		if id == "sb-slow" && nth > 3 {
			return http.StatusOK
		}
		return hang(r)
	}, "running")
	a.turn, a.within = 20*time.Millisecond, 30*time.Second
	ctx, cancel := a.bound(t.Context())
	defer cancel()
	if s, err := a.suspend(ctx, "", "sb-slow"); err != nil || s.State != "suspended" {
		t.Errorf("%+v, %v", s, err)
	}
	a.within = 100 * time.Millisecond
	ctx, cancel = a.bound(t.Context())
	defer cancel()
	_, err := a.suspend(ctx, "", "sb-stuck")
	if err == nil || !strings.Contains(err.Error(), `"sb-stuck": not done within 100ms`) {
		t.Errorf("got %v", err)
	}
}

// A request to a busy daemon is repeated after the time that the daemon names. If the sandbox is
// already suspended because of the earlier request, the daemon refuses the second request, and
// a.suspend returns success.
func TestSuspensionsAreRepeatedWhenTold(t *testing.T) {
	for name, second := range map[string]int{
		"then it is saved": http.StatusOK, "it is saved already": http.StatusConflict,
	} {
		a := suspender(t, func(_ string, nth int, _ *http.Request) int {
			if nth == 1 {
				return http.StatusServiceUnavailable
			}
			return second
		}, "suspended")
		if s, err := a.suspend(t.Context(), "", "sb-x"); err != nil || s.State != "suspended" {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
	a := suspender(t, func(string, int, *http.Request) int { return http.StatusConflict }, "running")
	if _, err := a.suspend(t.Context(), "", "sb-secret"); err == nil {
		t.Error("a refusal is a success")
	}
}

func TestSuspendWithinIsForAll(t *testing.T) {
	cmd := newSuspendCmd()
	cmd.SetArgs([]string{"sb-x", "--within", "1m"})
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), "--within") {
		t.Errorf("got %v", err)
	}
}
