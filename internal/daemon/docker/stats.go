package docker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/tenancy"
)

// sample describes what a container costs the host.
type sample struct {
	ID       string             `json:"id"`
	Name     string             `json:"name"`
	Read     time.Time          `json:"read"`
	PreRead  time.Time          `json:"preread"`
	CPU      cpuStats           `json:"cpu_stats"`
	PreCPU   cpuStats           `json:"precpu_stats"`
	Memory   memoryStats        `json:"memory_stats"`
	Pids     pidsStats          `json:"pids_stats"`
	Block    blockStats         `json:"blkio_stats"`
	Networks map[string]traffic `json:"networks,omitempty"`
	NumProcs int                `json:"num_procs"`
	Storage  struct{}           `json:"storage_stats"`
}

type cpuStats struct {
	Usage      cpuUsage       `json:"cpu_usage"`
	System     uint64         `json:"system_cpu_usage"` // processor time of the host, in nanoseconds
	Online     int            `json:"online_cpus"`
	Throttling throttledStats `json:"throttling_data"`
}

type cpuUsage struct {
	Total  uint64 `json:"total_usage"` // nanoseconds
	Kernel uint64 `json:"usage_in_kernelmode"`
	User   uint64 `json:"usage_in_usermode"`
}

type throttledStats struct {
	Periods   uint64 `json:"periods"`
	Throttled uint64 `json:"throttled_periods"`
	Time      uint64 `json:"throttled_time"` // nanoseconds
}

type memoryStats struct {
	Usage uint64            `json:"usage"`
	Stats map[string]uint64 `json:"stats"`
	Limit uint64            `json:"limit"`
}

type pidsStats struct {
	Current uint64 `json:"current"` // threads of the process that runs the virtual machine
}

type blockStats struct {
	Bytes []blockEntry `json:"io_service_bytes_recursive"`
}

type blockEntry struct {
	Major uint64 `json:"major"`
	Minor uint64 `json:"minor"`
	Op    string `json:"op"`
	Value uint64 `json:"value"`
}

type traffic struct {
	RxBytes   uint64 `json:"rx_bytes"`
	RxPackets uint64 `json:"rx_packets"`
	RxErrors  uint64 `json:"rx_errors"`
	RxDropped uint64 `json:"rx_dropped"`
	TxBytes   uint64 `json:"tx_bytes"`
	TxPackets uint64 `json:"tx_packets"`
	TxErrors  uint64 `json:"tx_errors"`
	TxDropped uint64 `json:"tx_dropped"`
}

// sampleEvery is the interval of samples.
const sampleEvery = time.Second

// stats() answers with what a container costs the host: once, or each second until the client
// leaves or the container is removed.
func (s *Server) stats(w http.ResponseWriter, r *http.Request) error {
	c, err := s.find(r)
	if err != nil {
		return err
	}
	stream := r.URL.Query().Get("stream") == "" || boolQuery(r, "stream")
	now, err := s.sample(r.Context(), s.view(r), &c)
	if err != nil {
		return err
	}
	if boolQuery(r, "one-shot") && !stream {
		return face.WriteJSON(w, r, http.StatusOK, now)
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	w.Header().Set("Content-Type", "application/json")
	out, rc := json.NewEncoder(w), http.NewResponseController(w)
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			panic(http.ErrAbortHandler)
		}
		before := now
		if now, err = s.sample(ctx, s.view(r), &c); err != nil {
			return nil // the container has been removed
		}
		now.PreRead, now.PreCPU = before.Read, before.CPU
		_ = rc.SetWriteDeadline(time.Now().Add(s.Face.Limits.Stall)) // connections of some tests have no deadlines
		if out.Encode(now) != nil || rc.Flush() != nil || !stream {
			return nil
		}
	}
}

// sample measures a container. The figures of a container that does not run are 0.
func (s *Server) sample(ctx context.Context, view *tenancy.View, c *found) (out sample, err error) {
	out = sample{ID: containerID(c.id), Name: "/" + c.name(), Read: time.Now().UTC(),
		Memory: memoryStats{Stats: map[string]uint64{}}, Block: blockStats{[]blockEntry{}}}
	limits, use, err := view.Usage(c.id)
	if err != nil {
		return out, err
	}
	out.CPU = cpuStats{Usage: cpuUsage{Total: uint64(use.CPU)}, Online: runtime.NumCPU(),
		Throttling: throttledStats{Throttled: use.ThrottledRuns, Time: uint64(use.Throttled)}}
	if out.CPU.System, err = hostCPU(); err != nil {
		return out, err
	}
	out.Memory.Usage, out.Memory.Limit = use.MemoryBytes, limits.MemoryMiB<<20
	out.Memory.Stats["inactive_file"] = use.MemoryBytes - min(use.OwnBytes, use.MemoryBytes) // clients subtract it
	if out.Memory.Limit == 0 {
		out.Memory.Limit = c.info.MemoryBytes
	}
	out.Pids.Current = use.Threads
	out.Block.Bytes = append(out.Block.Bytes, blockEntry{Op: "read", Value: use.ReadBytes},
		blockEntry{Op: "write", Value: use.WrittenBytes})
	if net, err := view.NetworkStats(ctx, c.id); err == nil { // otherwise the container has no network
		out.Networks = map[string]traffic{"eth0": {RxBytes: net.DownBytes, TxBytes: net.UpBytes, RxDropped: net.Dropped}}
	}
	return out, nil
}

// tick is the unit of /proc/stat on all architectures of Linux.
const tick = time.Second / 100

// hostCPU returns the processor time of the host since its boot, in nanoseconds. This is the sum of
// the first line of /proc/stat without the times of guests, because the times "user" and "nice" of
// the line include them (proc_stat(5)).
func hostCPU() (uint64, error) {
	p, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := bytes.Cut(p, []byte("\n"))
	words := strings.Fields(string(line))
	// The first guest time has this index, after user, nice, system, idle, iowait, irq, softirq and
	// steal.
	const guest = 9
	if len(words) < 2 || words[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %.40q", line)
	}
	total := uint64(0)
	for _, word := range words[1:min(guest, len(words))] {
		n, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %w", err)
		}
		total += n
	}
	return total * uint64(tick), nil
}

// Bounds on the output of ps.
const (
	maxTop  = 1 << 20 // bytes
	maxRows = 10_000  // lines; each takes far more memory than its text
)

// processList has the processes of a container, as columns of text.
type processList struct {
	Titles    []string
	Processes [][]string
}

// top lists the processes of a container with the program ps of its image. If the image has no ps, it
// lists the processes that were started through the API.
func (s *Server) top(w http.ResponseWriter, r *http.Request) error {
	c, err := s.find(r)
	if err != nil {
		return err
	}
	if st := c.status(); st != running {
		return conflict("Container %s is not running", containerID(c.id))
	}
	args := strings.Fields(r.URL.Query().Get("ps_args"))
	if len(args) == 0 {
		args = []string{"-ef"}
	}
	var list processList
	err = s.onGuest(r.Context(), r, &c, "list the processes of", func(ctx context.Context,
		guest *agentclient.Client) error {
		res, err := guest.Exec(ctx, agentclient.ExecRequest{Args: append([]string{"ps"}, args...), User: root,
			Timeout: controlFor, MaxOutput: maxTop})
		switch {
		case err != nil:
			return err
		case res.Outcome == agentclient.NotFound:
			list, err = started(ctx, guest)
			return err
		case res.Outcome != agentclient.Exited || res.ExitCode != 0:
			return face.BadRequest("ps_args: ps: %s: %.1000q", res.Status, res.Stderr)
		}
		list, err = parsePS(string(res.Stdout))
		return err
	})
	if err != nil {
		return err
	}
	return face.WriteJSON(w, r, http.StatusOK, list)
}

// started() lists those processes of a guest that were started through its agent.
func started(ctx context.Context, guest *agentclient.Client) (processList, error) {
	list := processList{Titles: []string{"PID", "CMD"}, Processes: [][]string{}}
	all, err := guest.Processes(ctx)
	for _, p := range all {
		list.Processes = append(list.Processes, []string{strconv.Itoa(int(p.PID)), strings.Join(p.Args, " ")})
	}
	return list, err
}

// parsePS divides the output of ps into columns. The last column may contain spaces.
func parsePS(text string) (processList, error) {
	list := processList{Processes: [][]string{}}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case list.Titles == nil:
			list.Titles = words
		case len(list.Processes) == maxRows:
			return list, face.BadRequest("ps_args: ps lists more than %d processes: select fewer of them", maxRows)
		case len(words) < len(list.Titles):
			return list, errors.New("ps: a line has fewer columns than the first line")
		default:
			last := len(list.Titles) - 1
			list.Processes = append(list.Processes, append(words[:last:last], strings.Join(words[last:], " ")))
		}
	}
	return list, nil
}
