// Package metrics counts the operations of the daemon, for Prometheus.
//
// There is no global registry: New makes a registry, and Handler serves it. Durations are in
// seconds.
package metrics

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/host/sandbox"
)

// Source has functions that return the values of gauges. They are called when metrics are
// collected.
type Source struct {
	Snapshots func() int
	Sandboxes func() map[string]int // number of sandboxes, by state
	Branches  func() (n, most int)  // number of branches in progress, and the maximum
	Pool      func() int            // number of waiting VMM processes

	PoolWanted func() int                  // number of waiting VMM processes when the pool is full
	Net        func() (Net, bool)          // false if forkd-net is not running; Net is nil if there is no network
	Usage      func() (cgroup.Usage, bool) // usage of all sandboxes together; false, or a nil function, if it is unknown
}

// Metrics implements sandbox.Observer.
type Metrics struct {
	registry  *prometheus.Registry
	forks     *prometheus.CounterVec
	children  prometheus.Counter
	confirms  prometheus.Counter
	exits     *prometheus.CounterVec
	refusals  *prometheus.CounterVec
	tries     *prometheus.CounterVec
	moves     *prometheus.CounterVec
	vmm       *prometheus.HistogramVec
	ready     *prometheus.HistogramVec
	forkWall  prometheus.Histogram
	branch    branchMetrics
	inbound   inboundMetrics
	requests  requestMetrics
	ssh       sshMetrics
	webhook   webhookMetrics
	arrival   arrivalMetrics
	refill    prometheus.Histogram
	sandboxes *prometheus.Desc
	net       netDescs
	usage     usageDescs
	source    Source

	made atomic.Uint64 // number of children that became ready
	took atomic.Int64  // nanoseconds; sum of the times that these children took
}

// buckets() returns bounds from 1 ms (a fork from a full pool) to a minute (an emulated host under
// load).
func buckets() []float64 { return prometheus.ExponentialBuckets(0.001, 2, 17) }

// New returns the metrics of a daemon. SetSource must be called before the metrics are served.
func New(version string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		forks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "forkd_forks_total", Help: "Fork calls by result."}, []string{"result"}),
		children: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "forkd_children_total", Help: "Children whose agent confirmed."}),
		confirms: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "forkd_confirm_failures_total", Help: "Children killed because their agent did not confirm."}),
		exits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "forkd_sandbox_exits_total", Help: "Sandboxes that ended by themselves, by reason."}, []string{"reason"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "forkd_admission_refusals_total", Help: "Forks and resumptions that were not admitted, by code."},
			[]string{"code"}),
		moves: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "forkd_moves_total", Help: "Steps of moves of sandboxes by result: left, arrived, cancelled or failed."},
			[]string{"result"}),
		tries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "forkd_tries_total", Help: "Tries by result: ok, no_winner, failed or client_left."},
			[]string{"result"}),
		vmm: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "forkd_child_vmm_seconds", Help: "Request to all vCPUs entered, per child.", Buckets: buckets()},
			[]string{"pool"}),
		ready: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "forkd_child_ready_seconds", Help: "Request to confirmed agent, per child.", Buckets: buckets()},
			[]string{"pool"}),
		forkWall: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "forkd_fork_seconds", Help: "Request to the last child confirmed, per fork call.", Buckets: buckets()}),
		refill: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "forkd_pool_refill_seconds", Help: "How long it took to start a VMM for the pool.", Buckets: buckets()}),
		sandboxes: prometheus.NewDesc("forkd_sandboxes", "Sandboxes by state.", []string{"state"}, nil),
	}
	m.branch, m.inbound, m.net, m.usage = newBranchMetrics(), newInboundMetrics(), newNetDescs(), newUsageDescs()
	m.requests, m.ssh, m.webhook = newRequestMetrics(), newSSHMetrics(), newWebhookMetrics()
	m.arrival = newArrivalMetrics()
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "forkd_build_info", Help: "Always 1.",
		ConstLabels: prometheus.Labels{"version": version}})
	build.Set(1)
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	m.registry.MustRegister(m.branch.all()...)
	m.registry.MustRegister(m.inbound.all()...)
	m.registry.MustRegister(m.requests.all()...)
	m.registry.MustRegister(m.ssh.all()...)
	m.registry.MustRegister(m.webhook.all()...)
	m.registry.MustRegister(m.arrival.all()...)
	m.registry.MustRegister(m.forks, m.children, m.confirms, m.exits, m.refusals, m.tries, m.moves, m.vmm, m.ready,
		m.forkWall, m.refill,
		build, m,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		gauge("forkd_snapshots_total", "Snapshots in the store.", func() float64 { return float64(m.source.Snapshots()) }),
		gauge("forkd_pool_shells", "VMM processes that wait for a fork.", func() float64 { return float64(m.source.Pool()) }),
		gauge("forkd_pool_wanted_shells", "How many there are when the pool is warm.", func() float64 {
			return float64(m.source.PoolWanted())
		}),
		gauge("forkd_branches_in_flight", "Branches that are being made.", func() float64 {
			n, _ := m.source.Branches()
			return float64(n)
		}),
		gauge("forkd_branch_concurrency_cap", "Branches that may be made at once.", func() float64 {
			_, most := m.source.Branches()
			return float64(most)
		}),
		gauge("forkd_sandboxes_active", "Running sandboxes.", func() float64 {
			return float64(m.source.Sandboxes()[sandbox.Running.String()])
		}))
	return m
}

// SetSource sets the source of gauges.
func (m *Metrics) SetSource(s Source) { m.source = s }

// Handler serves the metrics in the Prometheus text format.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Describe implements prometheus.Collector. It describes the metrics without a counter in this
// package: sandboxes by state, and the network.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.sandboxes
	m.net.describe(ch)
	m.usage.describe(ch)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for state, n := range m.source.Sandboxes() {
		ch <- prometheus.MustNewConstMetric(m.sandboxes, prometheus.GaugeValue, float64(n), state)
	}
	if m.source.Net != nil {
		n, alive := m.source.Net()
		m.net.collect(ch, n, alive)
	}
	if m.source.Usage != nil {
		if u, ok := m.source.Usage(); ok {
			m.usage.collect(ch, u)
		}
	}
}

// ForkDone counts a fork.
func (m *Metrics) ForkDone(r sandbox.ForkResult, err error) {
	switch {
	case err != nil:
		m.forks.WithLabelValues("failed").Inc()
		return
	case r.Failed > 0:
		m.forks.WithLabelValues("partial").Inc()
	default:
		m.forks.WithLabelValues("ok").Inc()
	}
	m.forkWall.Observe(r.ForkWall.Seconds())
}

// ChildReady counts a child that is ready for its client.
func (m *Metrics) ChildReady(t sandbox.Timing) {
	pool := "cold"
	if t.Pooled {
		pool = "warm"
	}
	m.children.Inc()
	m.made.Add(1)
	m.took.Add(int64(t.Ready))
	m.vmm.WithLabelValues(pool).Observe(t.VMM.Seconds())
	m.ready.WithLabelValues(pool).Observe(t.Ready.Seconds())
}

// Children returns how many children became ready, and how long they took together.
func (m *Metrics) Children() (n uint64, all time.Duration) {
	return m.made.Load(), time.Duration(m.took.Load())
}

// PoolRefilled counts a VMM that was started for the pool.
func (m *Metrics) PoolRefilled(took time.Duration) { m.refill.Observe(took.Seconds()) }

// ConfirmFailed counts a child that was killed because it did not confirm its identity.
func (m *Metrics) ConfirmFailed() { m.confirms.Inc() }

// Refused counts VMs that were not admitted.
func (m *Metrics) Refused(code string) { m.refusals.WithLabelValues(code).Inc() }

// Moved counts a step of a move.
func (m *Metrics) Moved(result string) { m.moves.WithLabelValues(result).Inc() }

// Tried counts a request that tried commands in children of a sandbox.
func (m *Metrics) Tried(result string) { m.tries.WithLabelValues(result).Inc() }

// SandboxExited counts a sandbox that ended by itself.
func (m *Metrics) SandboxExited(reason string) { m.exits.WithLabelValues(reason).Inc() }
