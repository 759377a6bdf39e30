package envd

import (
	"bufio"
	"bytes"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// metrics is the answer to GET /metrics; sizes are in bytes.
type metrics struct {
	Timestamp int64 `json:"ts"` // seconds since 1970
	CPUCount  int   `json:"cpu_count"`
	// Percentage of busy time of all CPUs since the previous call or, before the first call, since
	// boot.
	CPUUsedPct float64 `json:"cpu_used_pct"`
	MemTotal   uint64  `json:"mem_total"`
	MemUsed    uint64  `json:"mem_used"` // total minus available memory, so the page cache does not count
	MemCache   uint64  `json:"mem_cache"`
	DiskUsed   uint64  `json:"disk_used"` // bytes in use on the root file system
	DiskTotal  uint64  `json:"disk_total"`
}

// cpuMeter remembers the CPU times of the previous call of percent.
type cpuMeter struct {
	mu          sync.Mutex
	busy, total uint64 // clock ticks since boot
}

func (s *Server) handleMetrics(w http.ResponseWriter, _ *http.Request) {
	m, err := s.metrics()
	if err != nil {
		fail(w, fmt.Errorf("metrics: %w", err))
		return
	}
	writeJSON(w, m)
}

func (s *Server) metrics() (metrics, error) {
	m := metrics{Timestamp: time.Now().Unix(), CPUCount: runtime.NumCPU()}
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return m, err
	}
	busy, total, err := cpuTimes(stat)
	if err != nil {
		return m, err
	}
	m.CPUUsedPct = s.cpu.percent(busy, total)
	meminfo, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return m, err
	}
	mem := memFields(meminfo)
	m.MemTotal, m.MemCache = mem["MemTotal"], mem["Cached"]
	m.MemUsed = m.MemTotal - min(m.MemTotal, mem["MemAvailable"])
	var fs unix.Statfs_t
	if err := unix.Statfs("/", &fs); err != nil {
		return m, err
	}
	m.DiskTotal = fs.Blocks * uint64(fs.Bsize)
	m.DiskUsed = (fs.Blocks - fs.Bfree) * uint64(fs.Bsize)
	return m, nil
}

// percent returns the percentage of busy time since the previous call. It returns 0 if the counters
// decreased, as they do after a rollback.
func (c *cpuMeter) percent(busy, total uint64) float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out float64
	if total > c.total && busy >= c.busy {
		out = 100 * float64(busy-c.busy) / float64(total-c.total)
	}
	c.busy, c.total = busy, total
	return out
}

// cpuTimes reads the first line of /proc/stat (proc_stat(5)): user, nice, system, idle, iowait,
// irq, softirq, steal. It ignores the guest times after them, because user and nice already include
// the guest times.
func cpuTimes(stat []byte) (busy, total uint64, err error) {
	line, _, _ := bytes.Cut(stat, []byte("\n"))
	fields := strings.Fields(string(line))
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, 0, fmt.Errorf("/proc/stat begins with %q", line)
	}
	for i, f := range fields[1:9] {
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("/proc/stat: %w", err)
		}
		total += n
		if i != 3 && i != 4 { // all but idle and iowait
			busy += n
		}
	}
	return busy, total, nil
}

// memFields parses /proc/meminfo. It returns the values in bytes, by name.
func memFields(meminfo []byte) map[string]uint64 {
	out := map[string]uint64{}
	for lines := bufio.NewScanner(bytes.NewReader(meminfo)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) == 3 && f[2] == "kB" {
			if n, err := strconv.ParseUint(f[1], 10, 64); err == nil {
				out[strings.TrimSuffix(f[0], ":")] = n << 10
			}
		}
	}
	return out
}
