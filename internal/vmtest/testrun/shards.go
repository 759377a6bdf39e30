package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
)

// Numbers of tests in one shard. Shards let several hosts share a large package. Smaller shards would
// repeat the preparations of the package more often. The last shards are small, so that no host waits
// long for another host at the end.
const (
	maxShard = 12
	minShard = 4
)

// usualSeconds and slowTests estimate how long a test takes in an emulated host. They decide only
// the order of the shards. Each of the slowTests is a shard of its own, unless the variable
// together lists it.
const usualSeconds = 15

var slowTests = map[string]int{
	"TestApply":                 200,
	"TestContractWithVMs":       210,
	"TestDiffOfAHostileGuest":   170,
	"TestDownloadsAtOnce":       75,
	"TestForksBeforeAllIsThere": 380,
	"TestSoak":                  120,
	"TestTorture":               220,
	"TestVolumes":               160,
}

// together lists the integration tests whose snapshot has the distribution's kernel. They are one
// shard, because each host that runs one of them bakes this snapshot.
var together = []string{"TestACommandOutOfMemoryIsCalledThat", "TestConsoleFlood", "TestDiffOfAHostileGuest",
	"TestForksBeforeAllIsThere", "TestHooks", "TestHostileRoot", "TestSuspend", "TestVMEnds"}

// seconds estimates how long a shard takes.
func (p vmPkg) seconds() int {
	n := 0
	for _, name := range p.tests {
		n += cmp.Or(slowTests[name], usualSeconds)
	}
	return n
}

// split divides packages into shards for several hosts. The shards that take longest are first.
func split(packages []vmPkg, hosts int) []vmPkg {
	var shards []vmPkg
	for _, p := range packages {
		var rest, whole []string
		for _, name := range p.tests {
			switch {
			case slices.Contains(together, name):
				whole = append(whole, name)
			case slowTests[name] > 0:
				shards = append(shards, vmPkg{p.path, []string{name}})
			default:
				rest = append(rest, name)
			}
		}
		if len(whole) > 0 {
			shards = append(shards, vmPkg{p.path, whole})
		}
		for _, tests := range deal(rest, sizes(len(rest), hosts)) {
			shards = append(shards, vmPkg{p.path, tests})
		}
	}
	slices.SortStableFunc(shards, func(a, b vmPkg) int { return b.seconds() - a.seconds() })
	return shards
}

// sizes divides n tests into shards and returns the size of each shard. Each shard is small enough
// to leave enough work for all hosts.
func sizes(n, hosts int) (list []int) {
	for n > 0 {
		size := min(n, max(minShard, min(maxShard, n/(2*hosts))))
		list, n = append(list, size), n-size
	}
	return list
}

// deal distributes tests to shards of the given sizes. Neighboring tests, which are often similar,
// go to different shards.
func deal(tests []string, sizes []int) [][]string {
	shards := make([][]string, len(sizes))
	for i := 0; len(tests) > 0; i = (i + 1) % len(sizes) {
		if len(shards[i]) < sizes[i] {
			shards[i], tests = append(shards[i], tests[0]), tests[1:]
		}
	}
	return shards
}

// job is a unit of work for one host.
type job struct {
	name   string // shown if the job fails
	title  string
	memory uint64 // bytes that the job needs if it runs beside the emulated hosts
	do     func(context.Context, host, io.Writer) (counts, error)
}

func shardJob(p vmPkg) job {
	return job{name: p.path, title: fmt.Sprintf("%s: %d VM tests", p.path, len(p.tests)),
		do: func(ctx context.Context, h host, out io.Writer) (counts, error) {
			return vmPackage(ctx, h, p, out)
		}}
}

// plan returns the jobs for the hosts, in the order in which the hosts take them, and the jobs that
// run beside the hosts. If all is false, only the shards run.
func plan(all bool, hosts []host, memory uint64, shards []vmPkg) (jobs, beside []job) {
	if all {
		jobs = append(jobs, clientsJob()) // the longest job
		// An emulated host sometimes waits, for example for a client or for the end of a time
		// limit. The jobs beside the hosts use this time. Without emulated hosts, each of these
		// jobs runs alone, because it could disturb tests that look for leaks on this host.
		_, here := hosts[0].(thisHost)
		for _, j := range []job{smokeJob(), fakedJob()} {
			if here || memory < uint64(len(hosts))*machineMemory+j.memory {
				jobs = append(jobs, j)
			} else {
				beside = append(beside, j)
			}
		}
	}
	for _, shard := range shards {
		jobs = append(jobs, shardJob(shard))
	}
	return jobs, beside
}

// lane runs jobs one after another on a host.
type lane struct {
	host   host
	prefix string                  // of every line of output
	take   func() (n int, ok bool) // returns the index of the next job
}

// runJobs distributes the jobs among the hosts. At the same time it runs the jobs in beside, which
// need none of the hosts. It returns the sum of the counts, and the names of failed jobs.
func runJobs(ctx context.Context, hosts []host, jobs []job, beside ...job) (total counts, failed []string) {
	var mu sync.Mutex
	// from returns a function whose calls return the numbers first, first+1 and so on, up to end-1.
	from := func(first, end int) func() (int, bool) {
		return func() (int, bool) {
			mu.Lock()
			defer mu.Unlock()
			first++
			return first - 1, first <= end
		}
	}
	var lanes []lane
	shared := from(0, len(jobs))
	for n, h := range hosts {
		lanes = append(lanes, lane{h, fmt.Sprintf("%d| ", n+1), shared})
	}
	for n := range beside {
		lanes = append(lanes, lane{thisHost{}, fmt.Sprintf("%c| ", 'a'+n), from(len(jobs)+n, len(jobs)+n+1)})
	}
	jobs = append(slices.Clip(jobs), beside...)
	if len(lanes) == 1 {
		lanes[0].prefix = ""
	}
	var wg sync.WaitGroup
	for _, l := range lanes {
		h, out := l.host, &lineWriter{mu: &mu, to: os.Stdout, prefix: l.prefix}
		wg.Go(func() {
			defer h.stop()
			for i, ok := l.take(); ok && ctx.Err() == nil; i, ok = l.take() {
				j := jobs[i]
				out.last = nil
				fmt.Fprintf(out, "[%d/%d] %s\n", i+1, len(jobs), j.title)
				c, err := j.do(ctx, h, out)
				// An error without a failed test is for example a failed build, a hanging test, or
				// a failure of the published clients.
				if err != nil && len(c.failures) == 0 {
					c.failures = []string{j.name + "\n" + strings.Join(out.last, "")}
				}
				if err != nil {
					fmt.Fprintf(out, "FAIL  %s: %v\n", j.name, err)
				}
				mu.Lock()
				total.add(c)
				if err != nil && !slices.Contains(failed, j.name) {
					failed = append(failed, j.name)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return total, failed
}

// lineWriter writes whole lines, each with a prefix that names the source.
type lineWriter struct {
	prefix string
	mu     *sync.Mutex // held while a line is written; all writers to the same destination share it
	to     io.Writer
	rest   []byte   // an incomplete line
	last   []string // the last lines, up to lastLines, the newest at the end
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	end := bytes.LastIndexByte(w.rest, '\n')
	if end < 0 {
		return len(p), nil
	}
	var b strings.Builder
	for line := range bytes.Lines(w.rest[:end+1]) {
		b.WriteString(w.prefix)
		b.Write(line)
		w.last = append(w.last[max(0, len(w.last)+1-lastLines):], string(line))
	}
	w.rest = append(w.rest[:0], w.rest[end+1:]...)
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := io.WriteString(w.to, b.String())
	return len(p), err
}
