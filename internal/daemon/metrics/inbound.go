package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// inboundMetrics count streams from clients to ports of guests.
type inboundMetrics struct {
	open  prometheus.Gauge
	ended *prometheus.CounterVec
	took  *prometheus.HistogramVec
}

func newInboundMetrics() inboundMetrics {
	return inboundMetrics{
		open: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "forkd_inbound_streams", Help: "Open streams to ports of sandboxes."}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "forkd_inbound_streams_total", Help: "Streams to ports of sandboxes that have ended, by kind and outcome."},
			[]string{"kind", "outcome"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "forkd_inbound_stream_seconds", Help: "How long streams to ports of sandboxes were open, by kind.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 12)}, []string{"kind"}), // 1 ms to more than an hour
	}
}

func (m *inboundMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.open, m.ended, m.took}
}

// StreamBegun counts a stream to a port of a sandbox.
func (m *Metrics) StreamBegun() { m.inbound.open.Inc() }

// StreamEnded counts the end of a stream.
func (m *Metrics) StreamEnded(kind, outcome string, took time.Duration) {
	m.inbound.open.Dec()
	m.inbound.ended.WithLabelValues(kind, outcome).Inc()
	m.inbound.took.WithLabelValues(kind).Observe(took.Seconds())
}
