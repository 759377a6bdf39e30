// Package history keeps figures of running sandboxes and of the host over time, in memory: a point
// for each second of the last ten minutes, and a point for each minute of the last day.
//
// Its callers read the figures and decide who may see them. One goroutine samples everything. The
// cost is bounded: at most maxPerTick sandboxes are read each second, in turn, and a sandbox that
// does not run is not read. The history of a sandbox has at most 2040 points; maxPoints limits the
// per-minute points of all sandboxes together. The history of a sandbox is deleted with the
// sandbox, and when the daemon exits.
//
// A point stores the time since the recorder was made, and not the time of day. So if the host's
// clock is set, a point that was measured a minute ago still counts as a minute old.
package history

import (
	"context"
	"sync"
	"time"
)

// How long points are kept.
const (
	KeptFine   = 10 * time.Minute // points for seconds
	KeptCoarse = 24 * time.Hour   // points for minutes
)

// Limits of the recorder.
const (
	maxSeconds = int(KeptFine / time.Second)
	maxMinutes = int(KeptCoarse / time.Minute)
	// maximum number of sandboxes that are read in one second; if more sandboxes run, each has
	// fewer points
	maxPerTick = 256
	// maximum number of per-minute points of all sandboxes together; a point takes 24 bytes; if
	// there are too many sandboxes, each has fewer per-minute points, but at least minMinutes
	maxPoints  = 2 << 20
	minMinutes = 60
)

// restInterval is the time after which a sandbox that did not run is read again.
const restInterval = 5 * time.Second

// clockSlack is the maximum error in measuring the difference between two clocks. A larger
// difference means that a clock was set.
const clockSlack = time.Second

// Config configures a Recorder.
type Config struct {
	IDs func() []string // returns the ids of all sandboxes
	// Read measures a sandbox. It returns false if the sandbox does not run, or if the host does
	// not measure it.
	Read     func(id string) (Sandbox, bool)
	ReadHost func() (Host, bool) // measures the host, but does not count sandboxes

	Now     func() time.Time     // clock of the times in results; nil: time.Now
	Elapsed func() time.Duration // monotonic clock; nil: the time since New
}

// Recorder keeps the histories of sandboxes and of the host. Its methods may be called
// concurrently.
type Recorder struct {
	cfg Config

	mu sync.Mutex
	// +checklocks:mu
	sandboxes map[string]*series
	// +checklocks:mu
	host *series
	// +checklocks:mu
	running int // number of sandboxes that were running when they were last read, or that were never read
	// +checklocks:mu
	origin time.Time // the clock's time when Elapsed was zero
}

// New returns a Recorder without points.
func New(cfg Config) *Recorder {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Elapsed == nil {
		start := time.Now()
		cfg.Elapsed = func() time.Duration { return time.Since(start) }
	}
	r := &Recorder{cfg: cfg, sandboxes: make(map[string]*series), host: newSeries(hostKinds)}
	r.origin = cfg.Now().Add(-cfg.Elapsed()).Round(0)
	return r
}

// Run samples every second until ctx ends.
func (r *Recorder) Run(ctx context.Context) {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			r.Sample()
		case <-ctx.Done():
			return
		}
	}
}

// Sample reads the host, and the sandboxes that are due.
func (r *Recorder) Sample() {
	ids := r.cfg.IDs()
	exist := make(map[string]bool, len(ids))
	for _, id := range ids {
		exist[id] = true
	}
	now := r.begin(exist)
	most := maxPerTick
	for _, id := range ids {
		if !r.due(id, now) {
			continue
		}
		figures, ok := r.cfg.Read(id) // without the lock, because Read reads files
		if r.store(id, now, figures, ok) {
			if most--; most == 0 {
				break
			}
		}
	}
	figures, ok := r.cfg.ReadHost()
	r.mu.Lock()
	defer r.mu.Unlock()
	if ok {
		figures.Sandboxes, figures.Running = float64(len(ids)), float64(r.running)
		r.host.add(now, figures.values(), maxMinutes)
	}
}

// begin forgets sandboxes that no longer exist. It returns the time of the sample.
func (r *Recorder) begin(exist map[string]bool) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = len(exist) // a sandbox that was never read counts as running
	for id, s := range r.sandboxes {
		switch {
		case !exist[id]:
			delete(r.sandboxes, id)
		case s.resting:
			r.running--
		}
	}
	return r.cfg.Elapsed()
}

// due reports whether a sandbox must be read now. If more sandboxes run than can be read in a
// second, all of them are read equally often.
func (r *Recorder) due(id string, now time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[id]
	if s == nil {
		return true
	}
	every := time.Duration((r.running+maxPerTick-1)/maxPerTick) * time.Second
	if s.resting {
		every = restInterval
	}
	return now-s.looked >= every-time.Second/2 // half a second less, because ticks are not exact
}

// store adds the figures of a sandbox. The parameter ok is the second result of Config.Read; store
// returns it unchanged.
func (r *Recorder) store(id string, now time.Duration, figures Sandbox, ok bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[id]
	if s == nil {
		s = newSeries(sandboxKinds)
		r.sandboxes[id] = s
	}
	s.looked, s.resting = now, !ok
	if !ok {
		if s.rest(now) { // no points are left, but the series stays, because it has the time of the latest read
			s.sums, s.n = nil, 0
		}
		return false
	}
	s.add(now, figures.values(), r.mostMinutesLocked())
	return true
}

// mostMinutesLocked returns how many points for minutes a sandbox may have.
//
// +checklocks:r.mu
func (r *Recorder) mostMinutesLocked() int {
	return min(maxMinutes, max(minMinutes, maxPoints/max(1, len(r.sandboxes))))
}

// Point has the figures of a sandbox or of the host at one time.
type Point[F any] struct {
	At      time.Time
	Figures F
}

// Range selects points.
type Range struct {
	From, To time.Time // zero From: begin with the oldest point; zero To: end with the newest point
	Minutes  bool      // true selects points for minutes, and false selects points for seconds
}

// OfSandbox returns points of a sandbox, oldest first. An unknown sandbox has no points.
func (r *Recorder) OfSandbox(id string, in Range) []Point[Sandbox] {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.sandboxes[id]; s != nil {
		return pointsLocked(r, s, in, sandboxOf)
	}
	return nil
}

// OfHost returns points of the host, oldest first.
func (r *Recorder) OfHost(in Range) []Point[Host] {
	r.mu.Lock()
	defer r.mu.Unlock()
	return pointsLocked(r, r.host, in, hostOf)
}

// Began returns the time at which the recorder was made. There are no earlier points.
func (r *Recorder) Began() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.followClockLocked()
	return r.origin
}

// followClockLocked notices that the clock was set, and then moves the times of all points by the
// same amount.
//
// +checklocks:r.mu
func (r *Recorder) followClockLocked() {
	if origin := r.cfg.Now().Add(-r.cfg.Elapsed()).Round(0); origin.Sub(r.origin).Abs() > clockSlack {
		r.origin = origin
	}
}

// +checklocks:r.mu
func pointsLocked[F any](r *Recorder, s *series, in Range, figures func([]float32) F) (points []Point[F]) {
	r.followClockLocked()
	kept := KeptFine
	if in.Minutes {
		kept = KeptCoarse
	}
	now := r.cfg.Elapsed()
	from, to := max(0, now-kept), now
	if !in.From.IsZero() {
		from = max(from, in.From.Sub(r.origin))
	}
	if !in.To.IsZero() {
		to = min(to, in.To.Sub(r.origin))
	}
	if from > to {
		return nil
	}
	origin := r.origin
	s.each(cellOf(from), cellOf(to), in.Minutes, func(at cell, values []float32) {
		points = append(points, Point[F]{origin.Add(time.Duration(at) * tick), figures(values)})
	})
	return points
}

// Histories returns the number of sandboxes with a history.
func (r *Recorder) Histories() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.sandboxes)
}
