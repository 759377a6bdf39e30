package e2b

import (
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/daemon/template"
)

// buildEntry is a line of a build's log.
type buildEntry struct {
	Timestamp time.Time `json:"timestamp"`
	Level     string    `json:"level"`
	Message   string    `json:"message"`
	Step      string    `json:"step,omitempty"`
}

func (a *Server) buildStatus(w http.ResponseWriter, r *http.Request) error {
	b, err := a.findBuild(r, r.PathValue("build"))
	if err != nil {
		return err
	}
	offset := 0
	if text := r.URL.Query().Get("logsOffset"); text != "" {
		if offset, err = strconv.Atoi(text); err != nil || offset < 0 {
			return face.BadRequest("logsOffset: %q: want a number from 0", text)
		}
	}
	type reason struct {
		Message string `json:"message"`
		Step    string `json:"step"`
	}
	out := struct {
		TemplateID string          `json:"templateID"`
		BuildID    string          `json:"buildID"`
		Status     template.Status `json:"status"`
		Logs       []string        `json:"logs"` // always empty; the field is for older builds, but the SDKs require it
		Entries    []buildEntry    `json:"logEntries"`
		Reason     *reason         `json:"reason,omitempty"`
	}{TemplateID: b.Template, BuildID: b.ID, Logs: []string{}, Entries: []buildEntry{}}
	status, why := a.Builder.State(b) // read the state before the log, so that the log of an ended build is complete
	out.Status = status
	if status == template.Failed {
		out.Reason = &reason{why.Message, why.Step}
	}
	for _, e := range b.Log.From(offset, maxEntries) {
		out.Entries = append(out.Entries, entryOf(e))
	}
	return face.WriteJSON(w, r, http.StatusOK, out)
}

func entryOf(e template.Entry) buildEntry { return buildEntry{e.Time, e.Level, e.Message, e.Step} }

// buildLogs answers with a part of a build's log. The query selects the lowest level of the
// entries, and a time. The entries begin at this time, or go backward from this time.
func (a *Server) buildLogs(w http.ResponseWriter, r *http.Request) error {
	b, err := a.findBuild(r, r.PathValue("build"))
	if err != nil {
		return err
	}
	want, err := logQueryOf(r.URL.Query(), maxEntries)
	if err != nil {
		return err
	}
	all := b.Log.From(0, math.MaxInt)
	if want.back {
		slices.Reverse(all)
	}
	out := []buildEntry{}
	for _, e := range all {
		if len(out) < want.limit && want.lets(e.Time, e.Level) {
			out = append(out, entryOf(e))
		}
	}
	return face.WriteJSON(w, r, http.StatusOK, map[string]any{"logs": out})
}

// logQuery selects a part of a log.
type logQuery struct {
	from  time.Time // earliest time of the entries, or the latest time if back is true; zero: no bound
	back  bool      // the newest entries come first
	level int       // lowest level, as an index into levels
	limit int
}

// levels of entries, in rising order.
var levels = []string{"debug", "info", "warn", "error"}

func logQueryOf(q url.Values, most int) (want logQuery, err error) {
	want.limit = most
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return want, face.BadRequest("limit: %q: want 0 to %d", text, most)
		}
		want.limit = min(n, most)
	}
	for _, name := range []string{"start", "cursor"} { // older routes use start
		if text := q.Get(name); text != "" {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return want, face.BadRequest("%s: %q: want milliseconds since 1970", name, text)
			}
			want.from = time.UnixMilli(n)
		}
	}
	switch direction := q.Get("direction"); direction {
	case "", "forward":
	case "backward":
		want.back = true
	default:
		return want, face.BadRequest("direction: %q: want forward or backward", direction)
	}
	if level := q.Get("level"); level != "" {
		if want.level = slices.Index(levels, level); want.level < 0 {
			return want, face.BadRequest("level: %q: want debug, info, warn or error", level)
		}
	}
	return want, nil
}

// lets() reports whether the query selects an entry. It compares times in whole milliseconds,
// because queries have times in milliseconds.
func (q *logQuery) lets(at time.Time, level string) bool {
	if slices.Index(levels, level) < q.level {
		return false
	}
	at = at.Truncate(time.Millisecond)
	return q.from.IsZero() || !q.back && !at.Before(q.from) || q.back && !at.After(q.from)
}
