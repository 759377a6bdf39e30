package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/forkd/forkd/internal/host/sandbox"
)

// branchMetrics count branches and rollbacks.
type branchMetrics struct {
	total     *prometheus.CounterVec
	fallbacks prometheus.Counter
	storms    prometheus.Counter
	faults    prometheus.Counter
	dirty     prometheus.Counter
	pause     *prometheus.HistogramVec
	ready     *prometheus.HistogramVec
	rollbacks *prometheus.CounterVec
}

func newBranchMetrics() branchMetrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	histogram := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets()},
			[]string{"mode"})
	}
	return branchMetrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "forkd_branches_total", Help: "Branches by mode and result."}, []string{"mode", "result"}),
		fallbacks: counter("forkd_branch_fallbacks_total", "Live branches that were made by another mode."),
		storms: counter("forkd_branch_storms_total",
			"Live branches whose sandbox was stopped again because it wrote faster than could be copied."),
		faults: counter("forkd_branch_faults_total", "Pages copied because a sandbox wrote them during a live branch."),
		dirty:  counter("forkd_branch_dirty_bytes_total", "Memory that branched sandboxes had written."),
		pause:  histogram("forkd_branch_pause_seconds", "How long the sandbox stood still, per branch."),
		ready:  histogram("forkd_branch_ready_seconds", "Request to the snapshot's being usable, per branch."),
		rollbacks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "forkd_rollbacks_total", Help: "Rollbacks by result."}, []string{"result"}),
	}
}

func (b *branchMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{b.total, b.fallbacks, b.storms, b.faults, b.dirty, b.pause, b.ready, b.rollbacks}
}

// BranchDone counts a branch.
func (m *Metrics) BranchDone(r sandbox.BranchResult, err error) {
	b, f := &m.branch, r.Figure
	mode := f.Mode
	if err != nil {
		b.total.WithLabelValues(mode, "failed").Inc()
		return
	}
	b.total.WithLabelValues(mode, "ok").Inc()
	if f.Fallback != "" {
		b.fallbacks.Inc()
	}
	if f.Stop > 0 {
		b.storms.Inc()
	}
	b.faults.Add(float64(f.Faults))
	b.dirty.Add(float64(f.DirtyBytes))
	b.pause.WithLabelValues(mode).Observe(time.Duration(f.Pause + f.Stop).Seconds())
	b.ready.WithLabelValues(mode).Observe(time.Duration(f.Ready).Seconds())
}

// RollbackDone counts a rollback.
func (m *Metrics) RollbackDone(err error) {
	result := "ok"
	if err != nil {
		result = "failed"
	}
	m.branch.rollbacks.WithLabelValues(result).Inc()
}
