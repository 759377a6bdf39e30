package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
)

// shardTests is the maximum number of tests of a package in one shard. Shards let several hosts
// share a large package. With smaller shards, the preparations of the package, such as baking a
// parent, would be repeated more often.
const shardTests = 12

// split divides packages into shards of at most n tests each. The smallest shards are first,
// because a package with a single test usually has a long test, which should not be the last test
// to run.
func split(packages []vmPkg, n int) []vmPkg {
	var shards []vmPkg
	for _, p := range packages {
		parts := (len(p.tests) + n - 1) / n
		for i := range parts {
			shard := vmPkg{path: p.path}
			for j := i; j < len(p.tests); j += parts {
				shard.tests = append(shard.tests, p.tests[j])
			}
			shards = append(shards, shard)
		}
	}
	slices.SortStableFunc(shards, func(a, b vmPkg) int { return len(a.tests) - len(b.tests) })
	return shards
}

// job is a unit of work for one host.
type job struct {
	name  string // shown if the job fails
	title string
	do    func(context.Context, host, io.Writer) (counts, error)
}

func shardJob(p vmPkg) job {
	return job{name: p.path, title: fmt.Sprintf("%s: %d VM tests", p.path, len(p.tests)),
		do: func(ctx context.Context, h host, out io.Writer) (counts, error) {
			return vmPackage(ctx, h, p, out)
		}}
}

// runJobs distributes the jobs among the hosts. It returns the sum of the counts, and the names of
// failed jobs.
func runJobs(ctx context.Context, hosts []host, jobs []job) (total counts, failed []string) {
	var mu sync.Mutex
	next := 0
	take := func() int {
		mu.Lock()
		defer mu.Unlock()
		next++
		return next - 1
	}
	var wg sync.WaitGroup
	for n, h := range hosts {
		out := &lineWriter{mu: &mu, to: os.Stdout}
		if len(hosts) > 1 {
			out.prefix = fmt.Sprintf("%d| ", n+1)
		}
		wg.Go(func() {
			defer h.stop()
			for i := take(); i < len(jobs) && ctx.Err() == nil; i = take() {
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
