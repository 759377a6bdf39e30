package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// sshMetrics count logins and channels of SSH.
type sshMetrics struct {
	clients prometheus.Gauge
	open    prometheus.Gauge
	logins  *prometheus.CounterVec
	ended   *prometheus.CounterVec
	took    *prometheus.HistogramVec
	large   prometheus.Counter
}

func newSSHMetrics() sshMetrics {
	return sshMetrics{
		clients: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "forkd_ssh_clients", Help: "Connections over SSH that have logged in."}),
		open: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "forkd_ssh_sessions", Help: "Open sessions and forwarded connections over SSH."}),
		logins: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "forkd_ssh_logins_total", Help: "Connections over SSH by result: ok, refused or busy."}, []string{"result"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "forkd_ssh_sessions_total",
			Help: "Sessions and forwarded connections over SSH that have ended, by kind and outcome."},
			[]string{"kind", "outcome"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "forkd_ssh_session_seconds", Help: "How long sessions and forwarded connections over SSH were open, by kind.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 12)}, []string{"kind"}), // 1 ms to more than an hour
		large: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "forkd_ssh_out_of_memory_total",
			Help: "Connections over SSH that have ended because their process, or all together, reached the bound of memory."}),
	}
}

func (m *sshMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.clients, m.open, m.logins, m.ended, m.took, m.large}
}

// SSHConnected changes the number of connections that have logged in.
func (m *Metrics) SSHConnected(change int) { m.ssh.clients.Add(float64(change)) }

// SSHLogin counts a connection by the result of its login.
func (m *Metrics) SSHLogin(result string) { m.ssh.logins.WithLabelValues(result).Inc() }

// SSHSessionBegun counts a session or a forwarded connection.
func (m *Metrics) SSHSessionBegun() { m.ssh.open.Inc() }

// SSHSessionEnded counts the end of a session or of a forwarded connection.
func (m *Metrics) SSHSessionEnded(kind, outcome string, took time.Duration) {
	m.ssh.open.Dec()
	m.ssh.ended.WithLabelValues(kind, outcome).Inc()
	m.ssh.took.WithLabelValues(kind).Observe(took.Seconds())
}

// SSHOutOfMemory counts a connection that has ended because its process, or the processes of all
// connections together, reached a memory limit.
func (m *Metrics) SSHOutOfMemory() { m.ssh.large.Inc() }
