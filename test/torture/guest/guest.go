// Package guest defines the interface between the guest program test/guest/torture and its drivers:
// the path of the program, how to start the program, its answers, and how to check the answers.
// Each driver has its own way to send requests.
package guest

import (
	"fmt"
	"strings"
)

// Paths in the guest.
const (
	Program = "/usr/local/bin/torture"
	Socket  = "/run/torture.sock"
	Log     = "/run/torture.log"
	files   = "/var/lib/torture" // directory of the blocks, on the root disk
	Volume  = "/mnt/torture"     // path of a volume, for StartOn
)

// Port is the vsock port on which the program answers.
const Port = 7777

const pageSize = 4096

// Size is the amount of memory and disk that a program writes.
type Size struct {
	MemoryMiB, DiskMiB int
	CPUs               int // number of vCPUs, each with a writer of its own
}

// Start returns a shell script that starts the guest program and waits until it answers.
func (s Size) Start() string {
	return fmt.Sprintf("chmod 755 %s && sync && { setsid %[1]s serve %s %s %d %d >%s 2>&1 & } && "+
		"i=0; while [ ! -S %[2]s ]; do i=$((i+1)); [ $i -lt 600 ] || { cat %[6]s; exit 1; }; sleep 0.1; done",
		Program, Socket, files, s.MemoryMiB, s.DiskMiB, Log)
}

// StartOn is like Start, but the even blocks are on the volume that is mounted at Volume. So each
// verification also compares the instants of the root disk and of the volume.
func (s Size) StartOn() string {
	return fmt.Sprintf("mkdir -p %s && ln -s %s/direct %[1]s/direct && grep -q ' %[2]s ' /proc/mounts && ", files, Volume) +
		s.Start()
}

// Report is the answer of the guest program.
type Report struct {
	OK         bool     `json:"ok"`
	Pages      int      `json:"pages"`  // checked pages of memory
	Blocks     int      `json:"blocks"` // checked blocks on disk
	Seq        uint64   `json:"seq"`    // number of writes since the start
	Mark       uint64   `json:"mark"`
	CPUs       int      `json:"cpus"`       // number of vCPUs with a writer of their own
	Mismatches []string `json:"mismatches"` // texts of the first mismatches, and the number of further mismatches
}

// Mismatch is damage in a guest. An error of another type means that a step failed for another
// reason.
type Mismatch struct{ Found []string }

func (e *Mismatch) Error() string { return "MISMATCH:\n\t" + strings.Join(e.Found, "\n\t") }

// Mismatchf returns a Mismatch for damage that the driver has found.
func Mismatchf(format string, args ...any) error {
	return &Mismatch{[]string{fmt.Sprintf(format, args...)}}
}

// Damage returns a *Mismatch if the report has mismatches, or nil.
func (r *Report) Damage() error {
	if r.OK {
		return nil
	}
	return &Mismatch{r.Mismatches}
}

// Instant describes the instant at which a copy was taken.
type Instant struct {
	Mark uint64
	Seq  uint64 // number of writes that were complete at this instant
}

// Check returns nil if r is a complete verification of a guest with size s, and if this guest is a
// copy of the guest at the given instant. The guest may have continued since that instant. In all
// other cases, Check returns an error.
func (r *Report) Check(at Instant, s Size) error {
	pages, blocks := s.MemoryMiB<<20/pageSize, s.DiskMiB<<20/pageSize
	switch {
	case r.Mark != at.Mark:
		return Mismatchf("mark %d, want %d: another instant", r.Mark, at.Mark)
	case r.Seq < at.Seq:
		return Mismatchf("%d writes, at least %d were done before", r.Seq, at.Seq)
	case r.Pages != pages || r.Blocks != blocks || r.CPUs != s.CPUs:
		return fmt.Errorf("verified %d pages, %d blocks on %d CPUs, want %d, %d, %d",
			r.Pages, r.Blocks, r.CPUs, pages, blocks, s.CPUs)
	}
	return nil
}
