package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Router counts the requests of a router to its nodes. Its labels have the names of nodes, which the
// operator chooses, so the number of series is bounded. Its methods may be called concurrently.
type Router struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	placed   *prometheus.CounterVec
	usable   *prometheus.Desc
	nodes    func() map[string]bool
}

// NewRouter returns the metrics of a router. When they are collected, they call nodes(), which
// returns for each node whether the router can use it.
func NewRouter(nodes func() map[string]bool) *Router {
	m := &Router{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "forkd_router_requests_total",
			Help: "Requests that were sent to nodes for clients, by node and result: the class of the status (such as 2xx), " +
				"unreachable (not sent), failed (no whole answer) or client_left."}, []string{"node", "result"}),
		placed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "forkd_router_placements_total",
			Help: "Requests for new sandboxes that a node was chosen for, by node, and by where the node has the snapshot: " +
				"hot (in memory), cold (on disk) or absent."}, []string{"node", "snapshot"}),
		usable: prometheus.NewDesc("forkd_router_node_usable",
			"1 if the node has answered the last questions about itself, otherwise 0.", []string{"node"}, nil),
		nodes: nodes,
	}
	m.registry.MustRegister(m.requests, m.placed, m, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Handler serves the metrics in the Prometheus text format.
func (m *Router) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Describe implements prometheus.Collector.
func (m *Router) Describe(ch chan<- *prometheus.Desc) { ch <- m.usable }

// Collect implements prometheus.Collector.
func (m *Router) Collect(ch chan<- prometheus.Metric) {
	for node, usable := range m.nodes() {
		value := 0.0
		if usable {
			value = 1
		}
		ch <- prometheus.MustNewConstMetric(m.usable, prometheus.GaugeValue, value, node)
	}
}

// RequestDone counts a request to a node.
func (m *Router) RequestDone(node, result string) { m.requests.WithLabelValues(node, result).Inc() }

// Placed counts the choice of a node for new sandboxes.
func (m *Router) Placed(node, snapshot string) { m.placed.WithLabelValues(node, snapshot).Inc() }
