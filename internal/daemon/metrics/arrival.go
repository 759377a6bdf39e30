package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
)

// arrivalMetrics count snapshots that are forked while they arrive from a registry.
type arrivalMetrics struct {
	open   prometheus.Gauge
	ended  *prometheus.CounterVec
	frames *prometheus.CounterVec
	bytes  *prometheus.CounterVec
}

func newArrivalMetrics() arrivalMetrics {
	counter := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	return arrivalMetrics{
		open: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "forkd_arriving_snapshots", Help: "Snapshots that can be forked and are still arriving."}),
		ended: counter("forkd_arrivals_total",
			"Snapshots that have stopped arriving, by result: arrived, failed, deleted or stopped.", "result"),
		frames: counter("forkd_arriving_frames_total",
			"Frames of arriving snapshots that have come, by cause: fault (a sandbox waited) or background.", "cause"),
		bytes: counter("forkd_arriving_bytes_total", "Bytes of these frames, compressed, by cause.", "cause"),
	}
}

func (m *arrivalMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.open, m.ended, m.frames, m.bytes}
}

// ArrivalBegun counts a snapshot that can be forked before all of it has arrived.
func (m *Metrics) ArrivalBegun() { m.arrival.open.Inc() }

// ArrivalEnded counts the end of an arrival.
func (m *Metrics) ArrivalEnded(result string) {
	m.arrival.open.Dec()
	m.arrival.ended.WithLabelValues(result).Inc()
}

// FrameArrived counts a frame. If awaited is true, a sandbox waited for the frame.
func (m *Metrics) FrameArrived(awaited bool, bytes int64) {
	cause := "background"
	if awaited {
		cause = "fault"
	}
	m.arrival.frames.WithLabelValues(cause).Inc()
	m.arrival.bytes.WithLabelValues(cause).Add(float64(bytes))
}
