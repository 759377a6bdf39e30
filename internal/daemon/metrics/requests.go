package metrics

import (
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// requestMetrics count requests to the API by route and by the first digit of the status. The
// routes come from the API's document, so the number of series is bounded.
type requestMetrics struct {
	total *prometheus.CounterVec
	took  *prometheus.HistogramVec
	execs *prometheus.HistogramVec
}

// coarse returns the buckets for all routes: 5 ms to 80 s.
func coarse() []float64 { return prometheus.ExponentialBuckets(0.005, 4, 8) }

func newRequestMetrics() requestMetrics {
	return requestMetrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "forkd_requests_total", Help: "Requests to the API, by route and class of status."},
			[]string{"route", "class"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "forkd_request_seconds", Help: "How long requests to the API took, by route.", Buckets: coarse()},
			[]string{"route"}),
		execs: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "forkd_exec_seconds", Help: "Request to answer of commands and code in sandboxes, by kind.",
			Buckets: buckets()},
			[]string{"kind"}),
	}
}

func (m *requestMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.total, m.took, m.execs}
}

// RequestDone counts a request. If the request was refused before routing, the route is empty.
func (m *Metrics) RequestDone(route string, status int, took time.Duration) {
	if route == "" {
		route = "none"
	}
	m.requests.total.WithLabelValues(route, fmt.Sprintf("%dxx", status/100)).Inc()
	m.requests.took.WithLabelValues(route).Observe(took.Seconds())
	for _, kind := range []string{"exec", "eval"} {
		if strings.HasSuffix(route, "/"+kind) {
			m.requests.execs.WithLabelValues(kind).Observe(took.Seconds())
		}
	}
}
