package history

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/host/sandbox"
)

// Source has the objects from which a daemon's Recorder reads figures.
type Source struct {
	Manager  *sandbox.Manager
	Usage    func() (cgroup.Usage, error)         // usage of all sandboxes together
	Children func() (n uint64, all time.Duration) // returns how many children became ready, and their total time
}

// Config returns the configuration of a Recorder that reads the source.
func (s Source) Config() Config {
	return Config{IDs: s.Manager.IDs, Read: s.sandbox, ReadHost: s.host}
}

func (s Source) sandbox(id string) (f Sandbox, ok bool) {
	box, err := s.Manager.Get(id)
	if err != nil || box.Info().State != sandbox.Running {
		return f, false
	}
	_, u, err := s.Manager.Usage(id)
	// A sandbox always uses memory, so 0 bytes mean that the host cannot measure the sandbox.
	if err != nil || u.MemoryBytes == 0 {
		return f, false
	}
	return Sandbox{CPU: u.CPU.Seconds(), Memory: float64(u.MemoryBytes), Own: float64(u.OwnBytes),
		Read: float64(u.ReadBytes), Written: float64(u.WrittenBytes)}, true
}

func (s Source) host() (f Host, ok bool) {
	memory, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return f, false
	}
	times, err := os.ReadFile("/proc/stat")
	if err != nil {
		return f, false
	}
	if f.CPU, err = busy(times); err != nil {
		return f, false
	}
	f.Available, f.Tmpfs = kib(memory, "MemAvailable:")*1024, kib(memory, "Shmem:")*1024
	if u, err := s.Usage(); err == nil {
		f.SandboxCPU, f.Memory, f.Own = u.CPU.Seconds(), float64(u.MemoryBytes), float64(u.OwnBytes)
	}
	n, all := s.Children()
	f.Children, f.ReadySeconds, f.Pool = float64(n), all.Seconds(), float64(s.Manager.PoolSize())
	return f, true
}

// kib returns the number of KiB that /proc/meminfo (proc_meminfo(5)) has for key, or 0 if it does
// not have the key.
func kib(meminfo []byte, key string) float64 {
	for lines := bufio.NewScanner(bytes.NewReader(meminfo)); lines.Scan(); {
		if words := bytes.Fields(lines.Bytes()); len(words) > 1 && string(words[0]) == key {
			n, err := strconv.ParseUint(string(words[1]), 10, 64)
			if err == nil {
				return float64(n)
			}
		}
	}
	return 0
}

// userHz is the unit of /proc/stat: ticks per second, which is 100 on all architectures of Linux.
const userHz = 100

// busy returns the processor time of all CPUs in the first line of /proc/stat (proc_stat(5)), in
// seconds. It omits the time in which CPUs are idle or wait for disks. The time of guests is a part
// of user time, so it is included.
func busy(stat []byte) (seconds float64, err error) {
	line, _, _ := bytes.Cut(stat, []byte("\n"))
	words := bytes.Fields(line)
	if len(words) < 9 || string(words[0]) != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %.40q", line)
	}
	for i, word := range words[1:9] { // user nice system idle iowait irq softirq steal
		n, err := strconv.ParseUint(string(word), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %w", err)
		}
		if i != 3 && i != 4 {
			seconds += float64(n) / userHz
		}
	}
	return seconds, nil
}
