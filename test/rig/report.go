package rig

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/atomicfile"
)

// Report is the beginning of each report: the seed, the time, and a lock for the counts after it.
type Report struct {
	Seed    uint64  `json:"seed"`
	Seconds float64 `json:"duration_s"` // until the report was written

	sync.Mutex `json:"-"`
	start      time.Time
	out        io.Writer // of Say
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

// SayLocked is Say for a caller that holds the lock.
func (r *Report) SayLocked(format string, args ...any) {
	fmt.Fprintf(r.out, "%s %5.1f s: %s\n", time.Now().UTC().Format("15:04:05"), r.Elapsed(), fmt.Sprintf(format, args...))
}

// Count adds one to a count of the report.
func (r *Report) Count(n *int) {
	r.Lock()
	defer r.Unlock()
	*n++
}

// WriteLocked writes whole, the report that contains r, to path, completely or not at all. An empty
// path is no file. The caller holds the lock.
func (r *Report) WriteLocked(path string, whole any) error {
	r.Seconds = r.Elapsed()
	if path == "" {
		return nil
	}
	return atomicfile.WriteJSON(path, whole)
}
