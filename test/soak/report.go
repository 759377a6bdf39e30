package soak

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/forkd/forkd/test/rig"
)

// maxFindings limits the findings whose text is in the report. All findings are counted.
const maxFindings = 50

// Report holds the counts and findings of a run. It is written as out/soak.json.
type Report struct {
	rig.Report
	Clients int `json:"clients"`

	Operations  int                       `json:"operations"`   // requests that got any answer, or were cut off
	ByOperation map[string]map[string]int `json:"by_operation"` // number of requests, by operation and answer
	Excused     map[string]int            `json:"excused"`      // number of errors that faults explain, by code

	Faults      int          `json:"faults"`
	ByFault     map[Kind]int `json:"by_fault"`
	DaemonKills int          `json:"daemon_kills"`
	Audits      int          `json:"audits"`   // comparisons of the existing objects with the acknowledged objects
	Verified    int          `json:"verified"` // verifications of sandboxes that found no damage
	// Sandboxes that resumed from their suspended state after their VM was killed.
	Resurrected int `json:"resurrected"`
	// Sandboxes that a fault has ended. Such a sandbox had no suspended state, or was being rolled
	// back.
	EndedByFault int `json:"ended_by_fault"`

	LostSandboxes int      `json:"lost_sandboxes"`
	LostSnapshots int      `json:"lost_snapshots"`
	Corrupt       int      `json:"corrupt"`    // sandboxes that are damaged, or copies of another instant
	HalfMade      int      `json:"half_made"`  // objects that exist although no request for them was acknowledged
	Unexpected    int      `json:"unexpected"` // answers that no fault explains
	Leaks         int      `json:"leaks"`      // kinds of resources whose use has grown
	Findings      []string `json:"findings"`   // texts of the first findings
}

// NewReport starts the clock. Messages about the run's progress are written to out.
func NewReport(seed uint64, clients int, out io.Writer) *Report {
	r := &Report{Clients: clients, ByOperation: map[string]map[string]int{}, Excused: map[string]int{},
		Findings: []string{}}
	r.Start(seed, out)
	return r
}

// answered counts a request. Its answer is "ok", the code of an error, or "cut_off".
func (r *Report) answered(operation, answer string) {
	r.Lock()
	defer r.Unlock()
	r.Operations++
	if r.ByOperation[operation] == nil {
		r.ByOperation[operation] = map[string]int{}
	}
	r.ByOperation[operation][answer]++
}

func (r *Report) excused(answer string, by Kind) {
	r.Lock()
	defer r.Unlock()
	r.Excused[answer+": "+string(by)]++
}

// Audited counts a comparison of the existing objects with the acknowledged objects.
func (r *Report) Audited() { r.Count(&r.Audits) }

// find records a finding, and counts it in n.
func (r *Report) find(n *int, format string, args ...any) {
	r.Lock()
	defer r.Unlock()
	*n++
	text := fmt.Sprintf(format, args...)
	r.SayLocked("FOUND: %s", text)
	if len(r.Findings) < maxFindings {
		r.Findings = append(r.Findings, fmt.Sprintf("%.1f s: %s", r.Elapsed(), text))
	}
}

// Leak records a kind of resource whose use has grown.
func (r *Report) Leak(kind, what string) { r.find(&r.Leaks, "leak of %s: %s", kind, what) }

// HalfMadeThing records an object that was reported to no client.
func (r *Report) HalfMadeThing(format string, args ...any) { r.find(&r.HalfMade, format, args...) }

// Failed reports whether there are findings.
func (r *Report) Failed() bool {
	r.Lock()
	defer r.Unlock()
	return r.LostSandboxes+r.LostSnapshots+r.Corrupt+r.HalfMade+r.Unexpected+r.Leaks > 0
}

// Write writes the report to path, completely or not at all. The report includes the faults in the
// given log.
func (r *Report) Write(path string, log *FaultLog) error {
	r.Lock()
	defer r.Unlock()
	r.Faults, r.ByFault = 0, map[Kind]int{}
	for _, kind := range Kinds() {
		n := log.Count(kind)
		r.Faults += n
		r.ByFault[kind] = n
	}
	r.DaemonKills = r.ByFault[KillDaemon]
	return r.WriteLocked(path, r)
}

// Print writes the report as text. The report has the faults of the last call of Write.
func (r *Report) Print(to io.Writer) error {
	r.Lock()
	defer r.Unlock()
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "OPERATION\tANSWERS")
	for _, operation := range slices.Sorted(maps.Keys(r.ByOperation)) {
		fmt.Fprintf(w, "%s\t%s\n", operation, numbers(r.ByOperation[operation]))
	}
	fmt.Fprintf(w, "\nFAULT\tTIMES\n")
	for _, kind := range Kinds() {
		fmt.Fprintf(w, "%s\t%d\n", kind, r.ByFault[kind])
	}
	fmt.Fprintf(w, "\nERROR: ITS FAULT\tTIMES\n")
	for _, excuse := range slices.Sorted(maps.Keys(r.Excused)) {
		fmt.Fprintf(w, "%s\t%d\n", excuse, r.Excused[excuse])
	}
	fmt.Fprintf(w, "\nseed %d, %d clients, %.0f s: %d operations, %d faults, %d kills of the daemon, %d audits, "+
		"%d sandboxes verified, %d brought back, %d ended by faults\n", r.Seed, r.Clients, r.Seconds, r.Operations, r.Faults,
		r.DaemonKills, r.Audits, r.Verified, r.Resurrected, r.EndedByFault)
	fmt.Fprintf(w, "found: %d lost sandboxes, %d lost snapshots, %d corrupt, %d half-made, %d unexpected answers, %d leaks\n",
		r.LostSandboxes, r.LostSnapshots, r.Corrupt, r.HalfMade, r.Unexpected, r.Leaks)
	for _, f := range r.Findings {
		fmt.Fprintln(w, f)
	}
	return w.Flush()
}

// numbers() lists counts, the largest first.
func numbers(counts map[string]int) string {
	keys := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	var text []string
	for _, k := range keys {
		text = append(text, fmt.Sprintf("%s %d", k, counts[k]))
	}
	return strings.Join(text, ", ")
}
