package hub

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// If a host has dropped its blobs, it packs them again only if the registry lacks them.
func TestPushWithoutCachedBlobs(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a := serve(t), newHost(t).hasty()
	a.make(t, "parent", "", 2, 'p')
	a.push(t, "parent", s.host+"/team/py:1")
	if err := a.cache.trim(0); err != nil {
		t.Fatal(err)
	}
	a.push(t, "parent", s.host+"/team/py:2")
	if left, err := a.cache.list("blobs"); err != nil || len(left) != 0 {
		t.Errorf("%d blobs were packed again, %v", len(left), err)
	}
	other := serve(t)
	if sent := a.push(t, "parent", other.host+"/team/py:2"); sent.Moved != once(sent.Artifact) {
		t.Errorf("%d bytes of %d", sent.Moved, sent.Bytes())
	}
}

// If a push is interrupted, the registry gets no tag. The next push sends only the remaining blobs.
// A failed upload is tried again.
func TestInterruptedPush(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a := serve(t), newHost(t).hasty()
	a.make(t, "parent", "", 2, 'p')
	uploads := 0
	s.set(func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
		s.mu.Lock()
		dead := uploads >= 3
		if r.Method == http.MethodPatch {
			uploads++
		}
		s.mu.Unlock()
		if dead {
			panic(http.ErrAbortHandler)
		}
		inner.ServeHTTP(w, r)
	})
	var failed *RegistryError
	_, err := a.Push(t.Context(), "ann", "parent", remoteOf(t, s.host+"/team/py:1"), false, ignore)
	if !errors.As(err, &failed) {
		t.Fatal(err)
	}
	s.set(nil)
	b := newHost(t).hasty()
	if _, err := b.Pull(t.Context(), "ann", "", remoteOf(t, s.host+"/team/py:1"), ignore); !errors.As(err, &failed) ||
		failed.Status != http.StatusNotFound {
		t.Errorf("an interrupted push has left a tag: %v", err)
	}
	tries := make(map[string]int)
	s.set(func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
		s.mu.Lock()
		tries[r.Method]++
		first := tries[r.Method] == 1 && r.Method != http.MethodGet
		s.mu.Unlock()
		if first {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		inner.ServeHTTP(w, r)
	})
	sent := a.push(t, "parent", s.host+"/team/py:1")
	if sent.Moved >= sent.Bytes()+sent.Bytes()/4 || tries[http.MethodPatch] >= 2*len(sent.Blobs) {
		t.Errorf("%d bytes of %d were sent, in %d uploads", sent.Moved, sent.Bytes(), tries[http.MethodPatch])
	}
	b.pull(t, "", s.host+"/team/py:1")
	b.check(t, "parent", map[int64]byte{2: 'p'})
}

// A push asks the token server for access to repositories that the same client has pushed to, and
// never for access to repositories that only other clients have pushed to. If the token server
// refuses these repositories, the push succeeds without them, and later pushes do not ask for them.
func TestPushMountsOwnRepositories(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	var mu sync.Mutex
	var asked []string // scopes
	refused, status := "", 0
	s := serve(t)
	s.set(func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
		mu.Lock()
		defer mu.Unlock()
		scopes := r.URL.Query()["scope"]
		switch {
		case r.URL.Path == "/token" && refused != "" && strings.Contains(fmt.Sprint(scopes), refused):
			w.WriteHeader(status)
		case r.URL.Path == "/token":
			asked = append(asked, scopes...)
			fmt.Fprint(w, `{"token": "pass"}`)
		case r.Header.Get("Authorization") != "Bearer pass":
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="test"`, s.URL))
			w.WriteHeader(http.StatusUnauthorized)
		default:
			inner.ServeHTTP(w, r)
		}
	})
	a := newHost(t).hasty()
	a.make(t, "parent", "", 2, 'p')
	refuse := func(repo string, with int) {
		mu.Lock()
		defer mu.Unlock()
		refused, status = repo, with
	}
	push := func(who, repo string) (scopes string) {
		t.Helper()
		if _, err := a.Push(t.Context(), who, "parent", remoteOf(t, s.host+"/"+repo+":1"), false, ignore); err != nil {
			t.Fatalf("%s pushes to %s: %v", who, repo, err)
		}
		mu.Lock()
		defer mu.Unlock()
		scopes, asked = strings.Join(asked, " "), nil
		return scopes
	}
	push("ann", "one/x")
	if scopes := push("bob", "two/x"); strings.Contains(scopes, "one/x") {
		t.Errorf("bob's push asks for %s", scopes)
	}
	if scopes := push("ann", "three/x"); !strings.Contains(scopes, "one/x") || strings.Contains(scopes, "two/x") {
		t.Errorf("ann's push asks for %s", scopes)
	}
	before := "three/x"
	for _, status := range []int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden,
		http.StatusNotFound} {
		refuse(before, status)
		after := fmt.Sprintf("new%d/x", status)
		if scopes := push("ann", after); strings.Contains(scopes, before) || !strings.Contains(scopes, after) {
			t.Errorf("%d: a token for %s", status, scopes)
		}
		before = after
	}
	refuse("last/x", http.StatusForbidden)
	var failed *RegistryError
	_, err := a.Push(t.Context(), "ann", "parent", remoteOf(t, s.host+"/last/x:1"), false, ignore)
	if !errors.As(err, &failed) || failed.Status != http.StatusForbidden {
		t.Errorf("a push to a refused repository: %v", err)
	}
}
