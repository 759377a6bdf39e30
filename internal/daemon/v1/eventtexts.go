package v1

import (
	"sync"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/tenancy"
)

// maxTexts and maxShared bound the memory of eventTexts: the number of texts, and the bytes of a text.
const (
	maxTexts  = 512
	maxShared = 2 << 10
)

// eventTexts has the texts of the latest events. Streams of the same principal share a text,
// because for a stream that gathers events, encoding costs the daemon more than all other work. The
// zero value is ready for use. Its methods may be called concurrently.
type eventTexts struct {
	mu sync.Mutex
	// +checklocks:mu
	texts map[textKey]func() (string, error)
	// +checklocks:mu
	keys [maxTexts]textKey // of the latest texts
	// +checklocks:mu
	next int // index in keys of the next key
}

// textKey identifies a text. The same event may have different texts for different principals.
type textKey struct {
	view    tenancy.Key
	id      string // id of the event
	records bool   // the text has records
}

// get returns the text of an event. If the text is not known, it calls encode. Concurrent calls for
// a key wait for the same call of encode. Errors and long texts are not kept.
func (t *eventTexts) get(key textKey, encode func() (string, error)) (string, error) {
	shared := t.of(key, encode)
	text, err := shared()
	if err != nil || len(text) > maxShared {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.texts, key)
	}
	return text, err
}

func (t *eventTexts) of(key textKey, encode func() (string, error)) func() (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known, ok := t.texts[key]; ok {
		return known
	}
	if t.texts == nil {
		t.texts = make(map[textKey]func() (string, error))
	}
	delete(t.texts, t.keys[t.next])
	t.keys[t.next] = key
	t.next = (t.next + 1) % maxTexts
	t.texts[key] = sync.OnceValues(encode)
	return t.texts[key]
}

// textOf returns a function that returns the text of an event for a principal.
func (a *api) textOf(view *tenancy.View, records bool) func(id string, e *event.Event) (string, error) {
	who := view.Key()
	return func(id string, e *event.Event) (string, error) {
		return a.texts.get(textKey{who, id, records}, func() (string, error) {
			about := face.EventOf(id, e)
			if records {
				a.addRecords(view, &about, e.Kind)
			}
			return face.EventText(about.ID, about.Type, about)
		})
	}
}

// addRecords adds present records to an event. It adds the records of the objects that the event
// has changed, but only if the other fields of the event do not say what has changed. It omits
// records that the principal may not see.
func (a *api) addRecords(view *tenancy.View, about *apiv1.Event, kind event.Kind) {
	switch kind {
	case event.SandboxCreated, event.SandboxAdopted, event.SandboxRunning:
	case event.SnapshotCreated:
		if i, err := view.SnapshotInfo(about.SnapshotTag); err == nil {
			s := snapshotOf(view, i)
			about.Snapshot = &s
		}
	default:
		return
	}
	if about.SandboxID == "" {
		return
	}
	if i, err := view.Sandbox(about.SandboxID); err == nil {
		s := a.sandboxOf(view, i)
		about.Sandbox = &s
	}
}
