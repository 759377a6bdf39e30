package e2b

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/history"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/tenancy"
	"github.com/forkd/forkd/internal/proto/agentproto"
)

// Bounds on requests for metrics, and on the guests' answers.
const (
	maxMetrics     = 64 << 10 // bytes of a guest's answer
	metricsTimeout = 10 * time.Second
	metricsSlack   = 10 * time.Second // a time that differs from now by less than this counts as now
	metricsEvery   = 5 * time.Second  // interval of measurements, as in E2B
	maxUnix        = 253402300799     // the end of the year 9999
	maxMeasured    = 100              // sandboxes in one request
	maxLogs        = 1000
)

// metric is one measurement. Sizes are in bytes.
type metric struct {
	Timestamp time.Time `json:"timestamp"`
	Unix      int64     `json:"timestampUnix"`
	CPUs      int       `json:"cpuCount"`
	CPUUsed   float64   `json:"cpuUsedPct"`
	MemUsed   uint64    `json:"memUsed"`
	MemTotal  uint64    `json:"memTotal"`
	MemCache  uint64    `json:"memCache"`
	DiskUsed  uint64    `json:"diskUsed"`
	DiskTotal uint64    `json:"diskTotal"`
}

// metrics() answers with the measurements of a time range, oldest first. The daemon has made the
// past measurements from the host. If the range includes now, the last measurement comes from the
// guest.
func (a *Server) metrics(w http.ResponseWriter, r *http.Request) error {
	i, err := a.find(r)
	if err != nil {
		return err
	}
	in, wantsNow, err := rangeOf(r.URL.Query(), time.Now())
	if err != nil {
		return err
	}
	out := a.past(i, a.view(r), in)
	if stateOf(i) == running && wantsNow {
		m, err := measure(r.Context(), a.view(r), i)
		if err != nil {
			return err
		}
		out = append(out, m)
	}
	return face.WriteArray(w, out, func(m metric) metric { return m })
}

// past() returns the measurements of a range: one for each minute and, in the last ten minutes, one
// for each interval of metricsEvery.
func (a *Server) past(i sandbox.Info, view *tenancy.View, in history.Range) (out []metric) {
	vcpus, disk := view.Machine(i)
	add := func(p history.Point[history.Sandbox]) {
		out = append(out, metric{Timestamp: p.At.UTC(), Unix: p.At.Unix(), CPUs: int(max(vcpus, 1)),
			CPUUsed: 100 * p.Figures.CPU / float64(max(vcpus, 1)), MemUsed: min(uint64(p.Figures.Own), i.MemoryBytes),
			MemTotal: i.MemoryBytes, DiskTotal: disk})
	}
	seconds := a.History.OfSandbox(i.ID, in)
	in.Minutes = true
	for _, p := range a.History.OfSandbox(i.ID, in) {
		if len(seconds) == 0 || p.At.Before(seconds[0].At) {
			add(p)
		}
	}
	var last time.Time
	for _, p := range seconds {
		if p.At.Sub(last) >= metricsEvery {
			add(p)
			last = p.At
		}
	}
	return out
}

// rangeOf returns the time range of a query, in whole seconds of the client's clock, and whether
// the range includes now.
func rangeOf(q url.Values, now time.Time) (in history.Range, wantsNow bool, err error) {
	for name, to := range map[string]*time.Time{"start": &in.From, "end": &in.To} {
		text := q.Get(name)
		if text == "" {
			continue
		}
		at, err := strconv.ParseInt(text, 10, 64)
		if err != nil || at < 0 || at > maxUnix {
			return in, false, face.BadRequest("%s: %.100q: want seconds since 1970", name, text)
		}
		*to = time.Unix(at, 0)
	}
	wantsNow = (in.From.IsZero() || in.From.Sub(now) <= metricsSlack) && (in.To.IsZero() || now.Sub(in.To) <= metricsSlack)
	return in, wantsNow, nil
}

// metricsOfMany measures the sandboxes that a query names, and omits sandboxes that cannot be
// measured.
func (a *Server) metricsOfMany(w http.ResponseWriter, r *http.Request) error {
	ids := strings.Split(r.URL.Query().Get("sandbox_ids"), ",")
	if len(ids) > maxMeasured {
		return face.BadRequest("sandbox_ids: %d: want at most %d", len(ids), maxMeasured)
	}
	ctx, cancel := context.WithTimeout(r.Context(), metricsTimeout) // limits all measurements together
	defer cancel()
	view, out := a.view(r), map[string]metric{}
	for _, id := range ids {
		if i, err := get(view, id); err == nil && stateOf(i) == running {
			if m, err := measure(ctx, view, i); err == nil {
				out[id] = m
			}
		}
	}
	return face.WriteJSON(w, r, http.StatusOK, map[string]any{"sandboxes": out})
}

// measure reads a sandbox's metrics from its agent.
func measure(ctx context.Context, view *tenancy.View, i sandbox.Info) (m metric, err error) {
	ctx, cancel := context.WithTimeout(ctx, metricsTimeout)
	defer cancel()
	var said struct {
		CPUs      int     `json:"cpu_count"`
		CPUUsed   float64 `json:"cpu_used_pct"`
		MemTotal  uint64  `json:"mem_total"`
		MemUsed   uint64  `json:"mem_used"`
		MemCache  uint64  `json:"mem_cache"`
		DiskUsed  uint64  `json:"disk_used"`
		DiskTotal uint64  `json:"disk_total"`
	}
	err = view.LookAtRunning(ctx, i.ID, "measure", func(ctx context.Context, dial agentclient.DialFunc) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://envd/metrics", nil)
		if err != nil {
			return err
		}
		resp, err := agentclient.New(dial).Transport(agentproto.EnvdPort).RoundTrip(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("the agent answers %s", resp.Status)
		}
		return json.NewDecoder(io.LimitReader(resp.Body, maxMetrics)).Decode(&said)
	})
	now := time.Now().UTC()
	return metric{now, now.Unix(), said.CPUs, said.CPUUsed, said.MemUsed, said.MemTotal, said.MemCache, said.DiskUsed,
		said.DiskTotal}, err
}

// consoleLevel is the level reported for all lines of a console, because these lines have no level.
const consoleLevel = "info"

// logEntry is a line of a sandbox's console. Lines of a console have no time, so the start time of
// the sandbox is reported.
type logEntry struct {
	Timestamp time.Time         `json:"timestamp"`
	Message   string            `json:"message"`
	Level     string            `json:"level"`
	Fields    map[string]string `json:"fields"`
}

func (a *Server) logEntries(r *http.Request) ([]logEntry, error) {
	i, err := a.find(r)
	if err != nil {
		return nil, err
	}
	console, err := a.view(r).Console(i.ID)
	if err != nil {
		return nil, err
	}
	want, err := logQueryOf(r.URL.Query(), maxLogs)
	if err != nil {
		return nil, err
	}
	if !want.lets(i.Created, consoleLevel) {
		return []logEntry{}, nil
	}
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(string(console.Bytes), "\uFFFD")), "\n")
	lines = lines[max(0, len(lines)-want.limit):]
	entries := make([]logEntry, 0, len(lines))
	for _, line := range lines {
		if line = strings.TrimRight(line, "\r"); line != "" {
			entries = append(entries, logEntry{i.Created, line, consoleLevel, map[string]string{}})
		}
	}
	if want.back {
		slices.Reverse(entries)
	}
	return entries, nil
}

// logs() answers with the end of a sandbox's console.
func (a *Server) logs(w http.ResponseWriter, r *http.Request) error {
	entries, err := a.logEntries(r)
	if err != nil {
		return err
	}
	return face.WriteJSON(w, r, http.StatusOK, map[string]any{"logs": entries})
}

// logsV1 answers like logs, with objects instead of text lines. E2B's CLI uses it.
func (a *Server) logsV1(w http.ResponseWriter, r *http.Request) error {
	entries, err := a.logEntries(r)
	if err != nil {
		return err
	}
	type line struct {
		Timestamp time.Time `json:"timestamp"`
		Line      string    `json:"line"`
	}
	lines := make([]line, len(entries))
	for n, e := range entries {
		text, err := json.Marshal(map[string]string{"level": e.Level, "logger": "console", "message": e.Message})
		if err != nil {
			return err
		}
		lines[n] = line{e.Timestamp, string(text)}
	}
	return face.WriteJSON(w, r, http.StatusOK, map[string]any{"logs": lines, "logEntries": entries})
}
