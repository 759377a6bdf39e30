package hub

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/host/store"
)

// If a pull may reuse a snapshot, it returns the snapshot that an earlier pull has made from the
// same artifact. It does so while that snapshot is still arriving, after it has arrived, and after
// a restart. It refuses any other snapshot.
func TestReuse(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a, b := serve(t), newHost(t).hasty(), newHost(t).lazily(t)
	a.makeLarge(t, "py")
	a.push(t, "py", s.host+"/team/py:1")
	r := remoteOf(t, s.host+"/team/py:1").Reusing()
	b.quiet = time.Hour
	pull := func(h *host) (Pulled, error) {
		s.set(nil)
		return h.PullLazily(t.Context(), "ann", r.NewTag("py"), r, ignore)
	}
	if got, err := pull(b); err != nil || !got.Arriving {
		t.Fatalf("%+v, %v", got.Info, err)
	}
	id, _, err := b.store.Version("py")
	if err != nil {
		t.Fatal(err)
	}
	for range 5 { // more than there are places for pulls
		if got, err := pull(b); err != nil || !got.Arriving || got.Moved != 0 || got.Tag != "py" {
			t.Errorf("while it arrives: %+v, %v", got.Info, err)
		}
	}
	if now, _, err := b.store.Version("py"); err != nil || now != id {
		t.Errorf("the ID is %s, and was %s: %v", now, id, err)
	}
	if _, err := b.store.Delete("py", store.DeleteSingle); err != nil {
		t.Fatal(err)
	}
	c := newHost(t).hasty()
	if err := c.pullErr(t, s.host+"/team/py:1"); err != nil {
		t.Fatal(err)
	}
	if got, err := pull(c); err != nil || got.Moved != 0 {
		t.Errorf("when it has arrived: %+v, %v", got.Info, err)
	}
	if err := c.detachOthers(); err != nil { // as at the start of a daemon
		t.Fatal(err)
	}
	if got, err := pull(c); err != nil || got.Moved != 0 {
		t.Errorf("after a start: %+v, %v", got.Info, err)
	}
	a.remove(t, "py")
	a.disk = 0
	a.make(t, "py", "", 3, 'q')
	a.push(t, "py", s.host+"/team/py:1")
	var other *OtherError
	if _, err := pull(c); !errors.As(err, &other) || !errors.As(err, new(*store.ExistsError)) {
		t.Errorf("the tag of the registry names another snapshot: %v", err)
	}
	if _, err := pull(a); !errors.As(err, &other) {
		t.Errorf("a snapshot that was not pulled: %v", err)
	}
	if _, err := c.store.Delete("py", store.DeleteSingle); err != nil {
		t.Fatal(err)
	}
	if got, err := c.PullLazily(t.Context(), "ann", "", r, ignore); err != nil || got.Moved == 0 {
		t.Errorf("after a deletion: %+v, %v", got.Info, err)
	}
	if left, err := os.ReadDir(c.cache.pulled("")); err != nil || len(left) != 1 {
		t.Errorf("%d records, %v", len(left), err)
	}
}
