package view

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/chromedp/cdproto/tracing"
	"github.com/chromedp/chromedp"
)

var (
	framesTime  = flag.Duration("frames", time.Second, "how long TestFrames measures each number of pages")
	framesNodes = flag.Int("frames-nodes", 50, "number of sandboxes of TestFrames")
)

const (
	eventsPerSecond = 100
	frameTime       = 1000. / 60 // milliseconds of a frame
)

// TestFrames traces pages in Chromium while events change many sandboxes. It prints the longest
// tasks of the pages' main threads, and the use of processors by the daemon and 'forkd ui'. A page
// cannot draw a frame during a task of its main thread. The processor time of a task does not
// depend on other work of the host, unlike the task's duration. TestFrames also measures ten
// clients that send the requests of pages. They run without Chromium, because Chromium would need
// many processors for ten pages. The test asserts no times.
func TestFrames(t *testing.T) {
	r := startRig(t)
	var ids []string
	for len(ids) < *framesNodes {
		ids = append(ids, r.fork("base", min(50, *framesNodes-len(ids)), nil)...)
	}
	v := startView(t, r.URL, r.Token)
	p := newBrowser(t)
	var text bytes.Buffer
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "pages\tevents/s\tmost CPU time of a task\ttasks with more than a frame\tlongest task\ttasks longer than a frame\t"+
		"CPU time of main threads\tdaemon\t"+
		"forkd ui\t")
	r.measureClients(v, ids)
	var m measured
	address := v.URL
	var tabs []*page
	for _, want := range []int{1, 3} {
		for len(tabs) < want {
			tab := p
			if len(tabs) > 0 {
				tab = newTab(t, p.ctx)
			}
			tabs = append(tabs, tab)
			tab.do("open the view", chromedp.Navigate(address), chromedp.WaitVisible(chromedp.CSS(`[role=treeitem]`)))
			// The code in the address is valid once. Other tabs have the session's cookie.
			address = eval[string](tab, `location.href`)
			// Wait until the page has read the figures of all rows, so that this work is not
			// measured.
			tab.wait(allMeasured)
		}
		k := p.trace(tabs, func() { m = measure(r, v, ids, *framesTime) })
		fmt.Fprintf(table, "%d\t%.0f\t%.1f ms\t%d of %d\t%.1f ms\t%d\t%.1f %%\t%.1f %%\t%.1f %%\t\n", want, m.events,
			k.mostCPU, k.overCPU, k.all, k.longest, k.over, 100*k.busy/m.took.Seconds()/1000, m.daemon, m.view)
	}
	r.fork("base", 1, nil)
	for _, tab := range tabs { // every page has followed the events
		tab.wait(fmt.Sprintf(`document.querySelector(".summary b").textContent.replace(",", "") === "%d sandboxes"`,
			len(ids)+1))
		tab.clean(statsOfEnded)
	}
	table.Flush()
	t.Logf("%d sandboxes, %v for each line; a frame has %.1f ms; 100 %% is one processor\n%s", len(ids), *framesTime,
		frameTime, text.String())
}

// TestFramesOfForks traces a page while sandboxes are created, changed and deleted, so that its tree
// grows and shrinks. The test asserts no times.
func TestFramesOfForks(t *testing.T) {
	d := startFakeDaemon(t)
	d.gather = 250 * time.Millisecond // as the page requests from a real daemon
	d.snapshot("base", nil)
	id := func(n int) string { return fmt.Sprintf("sb-%026d", n) }
	create := func(n int) record {
		d.sandbox(id(n), record{"created_at_unix": 2 + n})
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.sandboxes.records[id(n)]
	}
	for n := range *framesNodes {
		create(n)
	}
	p := newBrowser(t)
	p.open(startView(t, d.URL, ""))
	p.wait(allMeasured)
	lists, first, next := d.count("GET /v1/sandboxes"), 0, *framesNodes
	k := p.trace([]*page{p}, func() {
		tick := time.NewTicker(time.Second / eventsPerSecond)
		defer tick.Stop()
		began := time.Now()
		for n := 0; time.Since(began) < *framesTime; n++ {
			switch <-tick.C; n % 3 {
			case 0:
				d.emit("sandbox.created", id(next), "base", record{"sandbox": create(next)})
				next++
			case 1:
				d.change("sandbox.labels", id(next-1), record{"labels": record{"name": fmt.Sprint("turn ", n)}})
			case 2:
				d.remove("sandbox.deleted", id(first))
				first++
			}
		}
	})
	d.remove("sandbox.deleted", id(first))
	p.wait(fmt.Sprintf(`document.querySelector(".summary b").textContent.replace(",", "") === "%d sandboxes"`,
		next-first-1))
	if n := d.count("GET /v1/sandboxes") - lists; n > 0 {
		t.Errorf("the page has listed the sandboxes %d times", n)
	}
	t.Logf("%d sandboxes, %v, %d events a second; most CPU time of a task: %.1f ms; tasks with more than a frame: %d of %d; "+
		"longest task: %.1f ms; tasks longer than a frame: %d; CPU time: %.1f %%", *framesNodes, *framesTime, eventsPerSecond,
		k.mostCPU, k.overCPU, k.all, k.longest, k.over, k.busy/framesTime.Seconds()/10)
	p.clean(statsOfEnded)
}

// allMeasured is an expression: the page has read the figures of all rows.
const allMeasured = `[...document.querySelectorAll("[role=treeitem] .icon.sandbox")].every((e) =>
	e.closest(".row").querySelector(".meter"))`

// measureClients prints how much processor time the daemon needs for ten clients that send the
// requests of pages. The changes themselves need more processor time, which varies with other work
// of the host. So the processor time is measured again and again, without and with the clients.
func (r *rig) measureClients(v *view, ids []string) {
	r.t.Helper()
	const clients, rounds = 10, 4
	for name, apart := range map[string]int{"the same rows": 0, "different rows": pageRows} {
		var cost, changes []float64
		for range rounds {
			without := measure(r, v, ids, *framesTime/rounds)
			leave := r.followAsPages(clients, apart, ids)
			with := measure(r, v, ids, *framesTime/rounds)
			leave()
			cost, changes = append(cost, with.daemon-without.daemon), append(changes, without.daemon)
		}
		slices.Sort(cost)
		slices.Sort(changes)
		// A percent of a processor is 10 ms a second.
		median := (cost[rounds/2-1] + cost[rounds/2]) / 2
		r.t.Logf("%d clients, %s: %.1f %% of a processor (%.1f to %.1f), %.2f ms a second and client; the changes: %.1f to %.1f %%",
			clients, name, median, cost[0], cost[rounds-1], 10*median/clients, changes[0], changes[rounds-1])
	}
}

// pageRows is the number of sandboxes whose figures a page reads every three seconds.
const pageRows = 4

// followAsPages starts clients that send the requests of pages. Each client follows the events.
// Every three seconds, it reads what pageRows sandboxes have written, and the record of the first
// of these sandboxes. Every third time, it reads all figures of the first sandbox. The caller sets
// the distance between the first sandboxes of successive clients (apart). If it is 0, all clients
// read the same sandboxes. The clients end when leave is called.
func (r *rig) followAsPages(n, apart int, ids []string) (leave func()) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	get := func(path string) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL+"/v1/"+path, nil)
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+r.Token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if _, err = io.Copy(io.Discard, resp.Body); err == nil && resp.StatusCode != http.StatusOK {
			err = errors.New(resp.Status)
		}
		return err
	}
	check := func(err error) {
		if err != nil && ctx.Err() == nil {
			r.t.Error(err)
		}
	}
	const interval = 3 * time.Second
	for page := range n {
		all.Go(func() { check(get("events?records=true&gather_secs=0.25")) })
		all.Go(func() {
			wait := interval * time.Duration(page) / time.Duration(n)
			for turn := page; ; turn++ {
				select {
				case <-time.After(wait):
				case <-ctx.Done():
					return
				}
				wait = interval
				for row, id := range ids[page*apart:][:pageRows] {
					if row == 0 && turn%3 == 0 {
						check(get("sandboxes/" + id + "/stats?max_age_secs=9"))
						continue
					}
					check(get("sandboxes/" + id + "/written?max_age_secs=3"))
				}
				check(get("sandboxes/" + ids[page*apart]))
			}
		})
	}
	return func() { cancel(); all.Wait() }
}

// measured is the result of one measurement.
type measured struct {
	took         time.Duration
	events       float64 // events per second
	daemon, view float64 // processor time of the daemon and of 'forkd ui', in percent of one processor
}

// measure changes labels of sandboxes for some time.
func measure(r *rig, v *view, ids []string, some time.Duration) measured {
	r.t.Helper()
	daemon, ui, began := cpuTime(r.t, r.PID), cpuTime(r.t, v.pid), time.Now()
	var sent atomic.Int64
	var workers sync.WaitGroup
	turns := make(chan int)
	for range 4 {
		workers.Go(func() {
			for n := range turns {
				path := "/v1/sandboxes/" + ids[n%len(ids)] + "/labels"
				if err := r.request("PATCH", path, map[string]string{"turn": fmt.Sprint(n)}, nil); err != nil {
					r.t.Error(err)
					continue
				}
				sent.Add(1)
			}
		})
	}
	tick := time.NewTicker(time.Second / eventsPerSecond)
	defer tick.Stop()
	for n := 0; time.Since(began) < some; n++ {
		turns <- n
		<-tick.C
	}
	close(turns)
	workers.Wait()
	took := time.Since(began)
	percent := func(since, now time.Duration) float64 { return 100 * float64(now-since) / float64(took) }
	return measured{took, float64(sent.Load()) / took.Seconds(), percent(daemon, cpuTime(r.t, r.PID)),
		percent(ui, cpuTime(r.t, v.pid))}
}

// cpuTime returns the processor time that a process has used, without its children.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	// The name of the program, in parentheses, may contain spaces.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	var ticks int
	for _, field := range fields[11:13] { // user and system time
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond // Linux reports 100 ticks per second
}

// tasks describes the tasks of the pages' main threads. Times are in milliseconds.
type tasks struct {
	mostCPU, longest   float64 // the most processor time of a task, and the longest duration
	overCPU, over, all int     // tasks with more processor time than a frame has, longer tasks, and all tasks
	busy               float64 // processor time of all tasks
}

// traced is an event of a trace. Times are in microseconds.
type traced struct {
	Name     string  `json:"name"`
	Phase    string  `json:"ph"` // X: the event has a duration
	PID      int     `json:"pid"`
	TID      int     `json:"tid"`
	Duration float64 `json:"dur"`
	CPU      float64 `json:"tdur"`
	Args     struct {
		Data struct {
			Frame string `json:"frame"`
		} `json:"data"`
	} `json:"args"`
}

// trace traces tabs of the browser while f runs.
func (p *page) trace(tabs []*page, f func()) tasks {
	p.t.Helper()
	var mu sync.Mutex
	var events []traced
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	err := chromedp.ListenBrowser(ctx, func(event any) {
		switch e := event.(type) {
		case *tracing.EventDataCollected:
			mu.Lock()
			defer mu.Unlock()
			for _, v := range e.Value {
				var one traced
				if json.Unmarshal(v, &one) == nil {
					events = append(events, one)
				}
			}
		case *tracing.EventTracingComplete:
			close(done)
		}
	})
	if err != nil {
		p.t.Fatal(err)
	}
	_, err = chromedp.CallBrowser(ctx, tracing.Start, tracing.StartParams{TraceConfig: &tracing.TraceConfig{
		IncludedCategories: []string{"devtools.timeline", "disabled-by-default-devtools.timeline"},
		ExcludedCategories: []string{"*"}}})
	if err != nil {
		p.t.Fatal(err)
	}
	f()
	for _, tab := range tabs { // the trace gets a frame of each tab, even if the host is slow
		tab.eval(`new Promise((drawn) => requestAnimationFrame(drawn))`)
	}
	if _, err := chromedp.CallBrowser(ctx, tracing.End, struct{}{}); err != nil {
		p.t.Fatal(err)
	}
	select {
	case <-done:
	case <-time.After(*patience):
		p.t.Fatal("Chromium does not end the trace")
	}
	frames := map[string]bool{}
	for _, tab := range tabs {
		frames[string(chromedp.FromContext(tab.ctx).Target.TargetID)] = true
	}
	mu.Lock()
	defer mu.Unlock()
	k := tasksOf(events, frames)
	if k.all == 0 {
		p.t.Error("the trace has no tasks of the pages")
	}
	return k
}

// tasksOf describes the tasks of the main threads of pages. The browser has pages of its own, such as
// the list below the address bar, so the function finds the threads by the ids of the pages' frames.
func tasksOf(events []traced, frames map[string]bool) (k tasks) {
	type thread struct{ pid, tid int }
	pages := map[thread]bool{}
	for _, e := range events {
		if e.Name == "FireAnimationFrame" && frames[e.Args.Data.Frame] {
			pages[thread{e.PID, e.TID}] = true
		}
	}
	for _, e := range events {
		if e.Name != "RunTask" || e.Phase != "X" || !pages[thread{e.PID, e.TID}] {
			continue
		}
		took, used := e.Duration/1000, e.CPU/1000
		k.all++
		k.busy += used
		k.longest, k.mostCPU = max(k.longest, took), max(k.mostCPU, used)
		if took > frameTime {
			k.over++
		}
		if used > frameTime {
			k.overCPU++
		}
	}
	return k
}
