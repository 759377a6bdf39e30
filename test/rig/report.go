package rig

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/atomicfile"
)

// Report holds the fields with which each report begins: the seed and the time. Its lock also
// guards the counts in the rest of the report.
type Report struct {
	Seed    uint64  `json:"seed"`
	Seconds float64 `json:"duration_s"` // time from the start to the writing of the report

	sync.Mutex `json:"-"`
	start      time.Time
	out        io.Writer // destination of Say
}

// Start sets the seed and starts the clock. Messages about the run are written to out as it proceeds.
func (r *Report) Start(seed uint64, out io.Writer) {
	r.Seed, r.out, r.start = seed, out, time.Now()
}

// Elapsed returns the seconds since Start.
func (r *Report) Elapsed() float64 { return time.Since(r.start).Seconds() }

// Say writes a line about the run.
func (r *Report) Say(format string, args ...any) {
	r.Lock()
	defer r.Unlock()
	r.SayLocked(format, args...)
}

// SayLocked is like Say, but for a caller that holds the lock.
func (r *Report) SayLocked(format string, args ...any) {
	fmt.Fprintf(r.out, "%s %5.1f s: %s\n", time.Now().UTC().Format("15:04:05"), r.Elapsed(), fmt.Sprintf(format, args...))
}

// Count adds one to a count of the report.
func (r *Report) Count(n *int) {
	r.Lock()
	defer r.Unlock()
	*n++
}

// WriteLocked writes a whole report to the file with the given path. The report r is a part of the
// whole report. WriteLocked writes the file completely or not at all. With an empty path, it writes
// nothing. The caller holds the lock.
func (r *Report) WriteLocked(path string, whole any) error {
	r.Seconds = r.Elapsed()
	if path == "" {
		return nil
	}
	return atomicfile.WriteJSON(path, whole)
}
