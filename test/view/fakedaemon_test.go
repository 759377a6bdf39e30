package view

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// record is an object of the API.
type record = map[string]any

// fakeDaemon answers the requests of the tree with the records of a test, and counts the requests.
// Records and events are independent. So a test can find out whether the page has used a record or an
// event.
type fakeDaemon struct {
	URL string
	old bool // the daemon knows only the routes and query parameters of an early version; set before the first request

	gather time.Duration // time between writes of a stream; set before the first request

	mu                   sync.Mutex
	sandboxes, snapshots table
	network              record        // of each sandbox
	events               []string      // messages of the stream; the first has number 1
	epoch                int           // number of restarts
	news                 chan struct{} // closed at the next event
	broken               chan struct{} // closed to end all streams
	cut                  int           // a stream ends after sending only the id of the event with this number; 0: none
	requests             map[string]int
	hold                 map[string]chan struct{} // by path: the answer is sent when the channel is closed
	held                 chan string              // receives a path when its answer is complete and held
	fail                 map[string]int           // by path: number of the next requests that fail
}

// table is a list of records, in the order of their creation.
type table struct {
	keys    []string
	records map[string]record
}

func (t *table) put(key string, r record) {
	if t.records == nil {
		t.records = map[string]record{}
	}
	if t.records[key] == nil {
		t.keys = append(t.keys, key)
	}
	t.records[key] = r
}

func (t *table) remove(key string) {
	delete(t.records, key)
	t.keys = slices.DeleteFunc(t.keys, func(k string) bool { return k == key })
}

func startFakeDaemon(t *testing.T) *fakeDaemon {
	t.Helper()
	d := &fakeDaemon{news: make(chan struct{}), broken: make(chan struct{}), requests: map[string]int{},
		hold: map[string]chan struct{}{}, held: make(chan string, 1), fail: map[string]int{}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d.URL = "http://" + l.Addr().String()
	mux := http.NewServeMux()
	handle := func(pattern string, answer func(w http.ResponseWriter, r *http.Request) any) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			// Pages of a list count as one request.
			if !r.URL.Query().Has("cursor") {
				d.mu.Lock()
				d.requests[pattern]++
				d.mu.Unlock()
			}
			d.serve(w, r, answer)
		})
	}
	handle("GET /healthz", func(http.ResponseWriter, *http.Request) any { return record{"ok": true} })
	handle("GET /version", func(http.ResponseWriter, *http.Request) any {
		return record{"version": "test", "api": "v1", "host_memory_mib": 1, "admission": record{}}
	})
	handle("GET /v1/sandboxes", func(w http.ResponseWriter, r *http.Request) any { return d.sandboxes.page(w, r) })
	handle("GET /v1/snapshots", func(w http.ResponseWriter, r *http.Request) any { return d.snapshots.page(w, r) })
	handle("GET /v1/sandboxes/{id}", func(_ http.ResponseWriter, r *http.Request) any {
		return d.sandboxes.records[r.PathValue("id")]
	})
	handle("GET /v1/snapshots/{tag}/info", func(_ http.ResponseWriter, r *http.Request) any {
		return d.snapshots.records[r.PathValue("tag")]
	})
	handle("GET /v1/sandboxes/{id}/stats", func(http.ResponseWriter, *http.Request) any {
		return record{"pss_kib": 2, "private_kib": 1, "guest_dirty_kib": 1, "disk_since_latest_kib": 2048,
			"usage": record{"cpu_seconds": 1, "cpus": 0.25}}
	})
	handle("GET /v1/sandboxes/{id}/written", func(http.ResponseWriter, *http.Request) any {
		return record{"guest_dirty_kib": 1, "disk_since_latest_kib": 2048, "usage": record{"cpu_seconds": 1, "cpus": 0.25}}
	})
	handle("GET /v1/sandboxes/{id}/network", func(http.ResponseWriter, *http.Request) any { return d.network })
	mux.HandleFunc("GET /v1/events", d.stream)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !d.old || !d.refuse(w, r) {
			mux.ServeHTTP(w, r)
		}
	})}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return d
}

// openTree opens the tree of a daemon with the snapshot base and the sandbox sb-a.
func openTree(t *testing.T) (*fakeDaemon, *page) {
	d := startFakeDaemon(t)
	d.snapshot("base", nil)
	d.sandbox("sb-a", record{"created_at_unix": 2})
	p := newBrowser(t)
	p.open(startView(t, d.URL, ""))
	return d, p
}

// refuse answers requests that an early version of the daemon does not know, in the same way as that
// version.
func (d *fakeDaemon) refuse(w http.ResponseWriter, r *http.Request) bool {
	answer := record{}
	switch q := r.URL.Query(); {
	case strings.HasSuffix(r.URL.Path, "/written"):
		answer = record{"status": 404, "code": "no_such_route", "detail": "GET " + r.URL.Path + ": no such route"}
	case q.Has("gather_secs"):
		answer = record{"status": 400, "code": "invalid_field",
			"detail": "gather_secs: unknown query parameter: this route has after, sandbox, label"}
	case q.Has("records"):
		answer = record{"status": 400, "code": "invalid_field",
			"detail": "records: unknown query parameter: this route has after, sandbox, label"}
	case q.Has("max_age_secs"):
		answer = record{"status": 400, "code": "invalid_field",
			"detail": "max_age_secs: unknown query parameter: this route has none"}
	default:
		return false
	}
	d.mu.Lock()
	d.requests["refused"]++
	d.mu.Unlock()
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(answer["status"].(int))
	_ = json.NewEncoder(w).Encode(answer) // fails only if the client has left
	return true
}

// serve sends the answer of a handler, which it calls with d locked. If the handler returns a nil
// record, the answer has the status 404.
func (d *fakeDaemon) serve(w http.ResponseWriter, r *http.Request,
	answer func(http.ResponseWriter, *http.Request) any) {
	d.mu.Lock()
	v := answer(w, r)
	body, err := json.Marshal(v)
	wait, fails := d.hold[r.URL.Path], d.fail[r.URL.Path] > 0
	if fails {
		d.fail[r.URL.Path]--
	}
	delete(d.hold, r.URL.Path)
	d.mu.Unlock()
	if wait != nil {
		d.held <- r.URL.Path
		<-wait
	}
	w.Header().Set("Content-Type", "application/json")
	switch rec, ok := v.(record); {
	case err != nil || fails:
		w.WriteHeader(http.StatusInternalServerError)
	case ok && rec == nil:
		w.WriteHeader(http.StatusNotFound)
	}
	_, _ = w.Write(body) // fails only if the client has left
}

// page returns a page of a list.
func (t *table) page(w http.ResponseWriter, r *http.Request) any {
	from, _ := strconv.Atoi(r.URL.Query().Get("cursor")) // the first page has no cursor
	from = min(from, len(t.keys))
	to := min(from+1000, len(t.keys))
	list := make([]record, 0, to-from)
	for _, key := range t.keys[from:to] {
		list = append(list, t.records[key])
	}
	if to < len(t.keys) {
		w.Header().Set("Link", fmt.Sprintf(`<%s?limit=1000&cursor=%d>; rel="next"`, r.URL.Path, to))
	}
	return list
}

func (d *fakeDaemon) idLocked(number int) string { return fmt.Sprintf("epoch%d-%d", d.epoch, number) }

func (d *fakeDaemon) stream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	d.mu.Lock()
	next := len(d.events) + 1 // number of the next event
	broken := d.broken
	if place := r.URL.Query().Get("after"); place != "" {
		d.requests["continue"]++
		number, ours := strings.CutPrefix(place, strings.TrimSuffix(d.idLocked(0), "0"))
		n, err := strconv.Atoi(number)
		if ours && err == nil {
			next = n + 1
		} else {
			next = 1
			id := d.idLocked(0)
			fmt.Fprintf(w, "id: %s\nevent: missed\ndata: {\"id\":%q,\"type\":\"missed\"}\n\n", id, id)
		}
	}
	fmt.Fprintf(w, "id: %s\n\n", d.idLocked(next-1))
	d.mu.Unlock()
	for {
		_ = http.NewResponseController(w).Flush() // fails only if the client has left
		d.mu.Lock()
		news := d.news
		cut := false
		for ; next <= len(d.events) && !cut; next++ {
			text := d.events[next-1]
			if cut = next == d.cut; cut {
				text, _, _ = strings.Cut(text, "event: ")
				d.cut = 0
			}
			_, _ = fmt.Fprint(w, text)
		}
		d.mu.Unlock()
		if cut {
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler) // ends the connection within the answer
		}
		_ = http.NewResponseController(w).Flush()
		time.Sleep(d.gather)
		select {
		case <-news:
		case <-broken:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// sandbox adds or replaces a sandbox.
func (d *fakeDaemon) sandbox(id string, fields record) {
	r := record{"id": id, "snapshot_tag": "base", "state": "running", "created_at_unix": time.Now().Unix(),
		"network": "open", "hostname": id}
	maps.Copy(r, fields)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sandboxes.put(id, r)
}

// snapshot adds or replaces a snapshot.
func (d *fakeDaemon) snapshot(tag string, fields record) {
	r := record{"tag": tag, "status": "ready", "created_at_unix": 1, "sandboxes": 0, "persist_status": "done",
		"mem_size_mib": 64}
	maps.Copy(r, fields)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.snapshots.put(tag, r)
}

// change changes fields of a sandbox, and emits an event with its labels.
func (d *fakeDaemon) change(kind, id string, fields record) {
	d.mu.Lock()
	r := maps.Clone(d.sandboxes.records[id])
	maps.Copy(r, fields)
	d.sandboxes.put(id, r)
	d.mu.Unlock()
	d.emit(kind, id, r["snapshot_tag"].(string), record{"labels": r["labels"], "reason": fields["exit_reason"]})
}

// remove removes a sandbox or a snapshot, and emits an event.
func (d *fakeDaemon) remove(kind, key string) {
	d.mu.Lock()
	d.sandboxes.remove(key)
	d.snapshots.remove(key)
	d.mu.Unlock()
	if strings.HasPrefix(kind, "snapshot.") {
		d.emit(kind, "", key, nil)
		return
	}
	d.emit(kind, key, "base", nil)
}

// emit sends an event to all streams.
func (d *fakeDaemon) emit(kind, id, tag string, fields record) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.emitLocked(len(d.events)+1, kind, id, tag, fields)
}

func (d *fakeDaemon) emitLocked(number int, kind, id, tag string, fields record) {
	e := record{"id": d.idLocked(number), "time": time.Now(), "type": kind}
	for name, value := range fields {
		if value != nil {
			e[name] = value
		}
	}
	if id != "" {
		e["sandbox_id"] = id
	}
	if tag != "" {
		e["snapshot_tag"] = tag
	}
	data, _ := json.Marshal(e) // cannot fail
	d.events = append(d.events, fmt.Sprintf("id: %s\nevent: %s\ndata: %s\n\n", e["id"], kind, data))
	close(d.news)
	d.news = make(chan struct{})
}

// breakStreams ends all streams. The next stream can continue if forget is false.
func (d *fakeDaemon) breakStreams(forget bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if forget {
		d.epoch++
		d.events = nil
	}
	close(d.broken)
	d.broken = make(chan struct{})
}

func (d *fakeDaemon) count(request string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.requests[request]
}

// holdNext delays the next answer for a path until release() is called. The channel d.held receives
// the path when the answer is complete.
func (d *fakeDaemon) holdNext(path string) (release func()) {
	wait := make(chan struct{})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hold[path] = wait
	return func() { close(wait) }
}
