package client

import (
	"context"
	"net/http"
	"net/url"
	"time"

	v1 "github.com/forkd/forkd/api/v1"
)

// Values of MetricsRequest.Step.
const (
	StepSecond = v1.StepSecond
	StepMinute = v1.StepMinute
)

// MetricsRequest selects points of a history.
type MetricsRequest struct {
	Since, Until time.Time // zero Since: from the oldest point; zero Until: to the newest point
	Step         string    // empty: StepSecond, unless Since is more than ten minutes ago
}

func (r MetricsRequest) query() (url.Values, error) {
	q := url.Values{}
	switch r.Step {
	case "":
	case StepSecond, StepMinute:
		q.Set("step", r.Step)
	default:
		return nil, wrong("step", "%q: want %s or %s", r.Step, StepSecond, StepMinute)
	}
	for name, at := range map[string]time.Time{"since": r.Since, "until": r.Until} {
		if !at.IsZero() {
			q.Set(name, at.UTC().Format(time.RFC3339Nano))
		}
	}
	return q, nil
}

// Metrics returns the history of a sandbox's use of its host.
func (c *Client) Metrics(ctx context.Context, id string, req MetricsRequest) (m Metrics, err error) {
	q, err := req.query()
	if err != nil {
		return m, err
	}
	err = c.call(ctx, http.MethodGet, withQuery(sandboxPath(id, "/metrics"), q), nil, &m)
	return m, err
}

// HostMetrics returns the history of the daemon's host.
func (c *Client) HostMetrics(ctx context.Context, req MetricsRequest) (m HostMetrics, err error) {
	q, err := req.query()
	if err != nil {
		return m, err
	}
	err = c.call(ctx, http.MethodGet, withQuery("/v1/host/metrics", q), nil, &m)
	return m, err
}
