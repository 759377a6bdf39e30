package sandbox

import (
	"testing"
	"time"

	"github.com/forkd/forkd/internal/host/store"
)

func (w *world) setExpiry(t *testing.T, id string, e Expiry) (Info, error) {
	t.Helper()
	return w.change(t.Context(), id, func(h *Held) error { return h.SetExpiry(e) })
}

func (w *world) resumeUntil(t *testing.T, id string, e Expiry) (Info, error) {
	t.Helper()
	return w.change(t.Context(), id, func(h *Held) error { return h.Resume(t.Context(), &e) })
}

// bringBackFor resumes a suspended sandbox in the same way as a request. The sandbox then expires
// after the given time.
func (w *world) bringBackFor(t *testing.T, id string, lasts time.Duration) (Info, error) {
	t.Helper()
	return w.change(t.Context(), id, func(h *Held) error {
		i := h.Info()
		if i.State != Suspended {
			return nil
		}
		return h.Resume(t.Context(), &Expiry{At: time.Now().Add(lasts), Suspends: i.ExpirySuspends})
	})
}

func (w *world) copyOf(t *testing.T, id, tag string) (i store.Info, err error) {
	t.Helper()
	err = w.With(t.Context(), id, func(h *Held) (err error) {
		i, err = h.Copy(t.Context(), tag)
		return err
	})
	return i, err
}
