package v1_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
)

func TestHistory(t *testing.T) {
	r := start(t, apirig.Options{})
	ctx := t.Context()
	if _, err := r.Client.Bake(ctx, r.Parent); err != nil {
		t.Fatal(err)
	}
	f, err := r.Client.Fork(ctx, client.ForkRequest{SnapshotTag: "a.b", N: 2})
	if err != nil {
		t.Fatal(err)
	}
	id := f.Sandboxes[0].ID
	m, err := r.Client.Metrics(ctx, id, client.MetricsRequest{})
	if err != nil || m.StepSecs != 1 || m.Points == nil || len(m.Points) != 0 || m.BeganAt == 0 {
		t.Errorf("before the first sample: %+v, %v", m, err)
	}
	if s, err := r.Client.Limits(ctx, id); err != nil || s.Usage.CPUs != nil {
		t.Errorf("before the first sample: %+v, %v", s.Usage, err)
	}
	r.History.Sample()
	time.Sleep(600 * time.Millisecond) // the usage of a sandbox is not read again sooner
	r.History.Sample()
	if m, err = r.Client.Metrics(ctx, id, client.MetricsRequest{}); err != nil || len(m.Points) != 1 ||
		m.Points[0].MemoryBytes != 48<<20 || m.Points[0].At < m.BeganAt {
		t.Errorf("%+v, %v", m, err)
	}
	if s, err := r.Client.Limits(ctx, id); err != nil || s.Usage.CPUs == nil || *s.Usage.CPUs != m.Points[0].CPUs {
		t.Errorf("CPUs in use: %+v, %v, want %v", s.Usage, err, m.Points[0].CPUs)
	}
	now := time.Now()
	for _, c := range []struct {
		req          client.MetricsRequest
		step, points int
	}{
		{client.MetricsRequest{Since: now.Add(-time.Minute)}, 1, 1},
		{client.MetricsRequest{Since: now.Add(-time.Hour)}, 60, 1},
		{client.MetricsRequest{Since: now.Add(-time.Hour), Step: client.StepSecond}, 1, 1},
		{client.MetricsRequest{Step: client.StepMinute}, 60, 1},
		{client.MetricsRequest{Until: now.Add(-time.Minute)}, 1, 0},
		{client.MetricsRequest{Since: now.Add(time.Minute)}, 1, 0},
	} {
		if m, err := r.Client.Metrics(ctx, id, c.req); err != nil || m.StepSecs != c.step || len(m.Points) != c.points {
			t.Errorf("%+v: %+v, %v", c.req, m, err)
		}
	}
	host, err := r.Client.HostMetrics(ctx, client.MetricsRequest{})
	if err != nil || len(host.Points) != 1 || host.MemoryBytes == 0 || host.CPUs == 0 {
		t.Fatalf("host: %+v, %v", host, err)
	}
	if p := host.Points[0]; p.Running != 2 || p.Sandboxes != 2 || p.AvailableBytes == 0 ||
		p.AvailableBytes > host.MemoryBytes || p.CPUs < 0 {
		t.Errorf("host: %+v", p)
	}
	if err := r.Client.Kill(ctx, id); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Client.Metrics(ctx, id, client.MetricsRequest{}); !client.IsNotFound(err) {
		t.Errorf("of an ended sandbox: %v", err)
	}
	r.History.Sample()
	if left := r.History.Histories(); left != 1 {
		t.Errorf("%d histories are kept of one sandbox", left)
	}
}

func TestHistoryQueries(t *testing.T) {
	_, url, id := forked(t)
	for _, query := range []string{"since=yesterday", "since=-1", "until=NaN", "step=hour", "since=1m&until=2m",
		"from=1"} {
		for _, path := range []string{"/v1/sandboxes/" + id + "/metrics?", "/v1/host/metrics?"} {
			if status, answer := request(t, http.MethodGet, url+path+query, ""); status != http.StatusBadRequest ||
				answer["field"] == nil {
				t.Errorf("%s: %d %v", query, status, answer)
			}
		}
	}
}

// A client sees only the history of its own sandboxes. Only a client without a prefix sees the
// history of the host.
func TestHistoryOfOthers(t *testing.T) {
	r := start(t, apirig.Options{Tokens: []auth.Token{
		{Name: "a", Scope: auth.Run, Prefix: "a/"}, {Name: "reader", Scope: auth.Read}}})
	ctx := t.Context()
	if _, err := r.Client.Bake(ctx, r.Parent); err != nil {
		t.Fatal(err)
	}
	f, err := r.Client.Fork(ctx, client.ForkRequest{SnapshotTag: "a.b", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"a": http.StatusNotFound, "reader": http.StatusOK} {
		cl, err := client.New(r.URL, r.Tokens[name])
		if err != nil {
			t.Fatal(err)
		}
		_, err = cl.Metrics(ctx, f.Sandboxes[0].ID, client.MetricsRequest{})
		if want == http.StatusOK && err != nil || want != http.StatusOK && !client.IsStatus(err, want) {
			t.Errorf("%s: %v, want %d", name, err, want)
		}
		if want == http.StatusNotFound {
			want = http.StatusForbidden
		}
		_, err = cl.HostMetrics(ctx, client.MetricsRequest{})
		if want == http.StatusOK && err != nil || want != http.StatusOK && !client.IsStatus(err, want) {
			t.Errorf("host, %s: %v, want %d", name, err, want)
		}
	}
}
