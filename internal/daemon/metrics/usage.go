package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/forkd/forkd/internal/host/cgroup"
)

// usageDescs describe the host's resources that all sandboxes use together. There are no metrics
// for single sandboxes, because a sandbox may exist for only a few seconds. The API has the figures
// of single sandboxes.
type usageDescs struct {
	memory, swap, cpu, throttled, periods, threads, read, written *prometheus.Desc
}

func newUsageDescs() usageDescs {
	desc := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }
	return usageDescs{
		memory: desc("forkd_sandboxes_memory_bytes",
			"Memory charged to sandboxes, pooled VMMs and forkd-net, with page cache."),
		swap: desc("forkd_sandboxes_swap_bytes", "Memory charged to them that is on swap."),
		cpu: desc("forkd_sandboxes_cpu_usage_seconds_total",
			"Processor time of sandboxes, including ended ones, and of forkd-net."),
		throttled: desc("forkd_sandboxes_cpu_throttled_seconds_total",
			"How long sandboxes were throttled by their cpus limit."),
		periods: desc("forkd_sandboxes_cpu_throttled_periods_total", "Periods in which sandboxes were throttled."),
		threads: desc("forkd_sandboxes_threads", "Threads of VMM processes and of forkd-net."),
		read:    desc("forkd_sandboxes_io_read_bytes_total", "Bytes that sandboxes read from disks of the host."),
		written: desc("forkd_sandboxes_io_written_bytes_total", "Bytes that sandboxes wrote to disks of the host."),
	}
}

func (d *usageDescs) describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{d.memory, d.swap, d.cpu, d.throttled, d.periods, d.threads, d.read,
		d.written} {
		ch <- desc
	}
}

func (d *usageDescs) collect(ch chan<- prometheus.Metric, u cgroup.Usage) {
	for _, m := range []struct {
		desc  *prometheus.Desc
		kind  prometheus.ValueType
		value float64
	}{
		{d.memory, prometheus.GaugeValue, float64(u.MemoryBytes)},
		{d.swap, prometheus.GaugeValue, float64(u.SwapBytes)},
		{d.cpu, prometheus.CounterValue, u.CPU.Seconds()},
		{d.throttled, prometheus.CounterValue, u.Throttled.Seconds()},
		{d.periods, prometheus.CounterValue, float64(u.ThrottledRuns)},
		{d.threads, prometheus.GaugeValue, float64(u.Threads)},
		{d.read, prometheus.CounterValue, float64(u.ReadBytes)},
		{d.written, prometheus.CounterValue, float64(u.WrittenBytes)},
	} {
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value)
	}
}
