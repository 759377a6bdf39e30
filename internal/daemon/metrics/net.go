package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/forkd/forkd/internal/proto/netproto"
)

// Net holds the counters of forkd-net since it was started, and the number of its restarts.
type Net struct {
	Restarts uint64
	Totals   netproto.Stats
}

// netDescs describe the metrics of the network. forkd-net counts them, and starts at 0 after each
// restart.
type netDescs struct {
	restarts, open, connections, up, down, queries, dropped, refused *prometheus.Desc
}

func newNetDescs() netDescs {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return netDescs{
		restarts:    desc("forkd_net_restarts_total", "How often forkd-net was started again."),
		open:        desc("forkd_net_open_connections", "Connections of sandboxes, UDP included."),
		connections: desc("forkd_net_connections_total", "Connections of sandboxes that were let through and have ended."),
		up:          desc("forkd_net_up_bytes_total", "Payload from sandboxes, of connections that have ended."),
		down:        desc("forkd_net_down_bytes_total", "Payload to sandboxes, of connections that have ended."),
		queries:     desc("forkd_net_dns_queries_total", "Names that sandboxes asked for."),
		dropped:     desc("forkd_net_dropped_frames_total", "Frames that a sandbox had no room for, or that were malformed."),
		refused: desc("forkd_net_refused_total", "Connections of sandboxes that were not let through, by reason.",
			"reason"),
	}
}

func (d *netDescs) describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{d.restarts, d.open, d.connections, d.up, d.down, d.queries, d.dropped,
		d.refused} {
		ch <- desc
	}
}

func (d *netDescs) collect(ch chan<- prometheus.Metric, n Net, alive bool) {
	ch <- prometheus.MustNewConstMetric(d.restarts, prometheus.CounterValue, float64(n.Restarts))
	if !alive {
		return
	}
	ch <- prometheus.MustNewConstMetric(d.open, prometheus.GaugeValue, float64(n.Totals.Open))
	for _, c := range []struct {
		desc  *prometheus.Desc
		count uint64
	}{
		{d.connections, n.Totals.Connections}, {d.up, n.Totals.UpBytes}, {d.down, n.Totals.DownBytes},
		{d.queries, n.Totals.DNSQueries}, {d.dropped, n.Totals.Dropped},
	} {
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, float64(c.count))
	}
	sums := make(map[string]uint64)
	for _, r := range n.Totals.Refused {
		sums[r.Reason] += r.Count
	}
	for reason, count := range sums {
		ch <- prometheus.MustNewConstMetric(d.refused, prometheus.CounterValue, float64(count), reason)
	}
}
