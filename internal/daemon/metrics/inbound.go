package metrics

import "github.com/prometheus/client_golang/prometheus"

// inboundMetrics count streams from clients to ports of guests.
type inboundMetrics struct {
	open  prometheus.Gauge
	ended *prometheus.CounterVec
}

func newInboundMetrics() inboundMetrics {
	return inboundMetrics{
		open: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "forkd_inbound_streams", Help: "Open streams to ports of sandboxes."}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "forkd_inbound_streams_total", Help: "Streams to ports of sandboxes that have ended, by kind and outcome."},
			[]string{"kind", "outcome"}),
	}
}

func (m *inboundMetrics) all() []prometheus.Collector { return []prometheus.Collector{m.open, m.ended} }

// StreamBegun counts a stream to a port of a sandbox.
func (m *Metrics) StreamBegun() { m.inbound.open.Inc() }

// StreamEnded counts its end.
func (m *Metrics) StreamEnded(kind, outcome string) {
	m.inbound.open.Dec()
	m.inbound.ended.WithLabelValues(kind, outcome).Inc()
}
