package torture

import (
	"errors"
	"fmt"
	"io"

	"github.com/forkd/forkd/internal/proto/vmmproto"
	"github.com/forkd/forkd/test/rig"
	"github.com/forkd/forkd/test/torture/guest"
)

// Report counts the operations of a run. Both this package and test/integration use it. The report
// is written as out/torture.json.
type Report struct {
	rig.Report
	Branches         int            `json:"branches"` // complete branches
	ByMode           map[string]int `json:"by_mode"`
	ChildrenVerified int            `json:"children_verified"`
	SourcesVerified  int            `json:"sources_verified"`
	// Branches that were refused because another branch was being copied.
	Refused         int `json:"refused"`
	Failed          int `json:"failed"`            // branches that failed for lack of room, as expected
	FailedUnderFire int `json:"failed_under_fire"` // branches among Failed that were live and had write faults
	FullFS          int `json:"whole_on_full_fs"`  // branches that were completed on a full file system
	Races           int `json:"races"`             // branches during which another request was made
	Kills           int `json:"kills"`             // VMMs killed in the middle of a branch
	DaemonKills     int `json:"daemon_kills"`      // daemons killed in the middle of a branch
	// Branches that were cut off by a kill and did not exist afterwards.
	CutOff      int `json:"cut_off"`
	Rollbacks   int `json:"rollbacks"`
	Suspensions int `json:"suspensions"`
	Removals    int `json:"removals"` // removals of snapshots
	Merges      int `json:"merges"`   // of disk layers of a running source
	Rebases     int `json:"rebases"`
	// Branches onto which the source could not be rebased, because another operation followed them.
	NotKept int `json:"not_rebased"`
	// Refused rebases onto a branch that was not the latest one.
	Outdated     int    `json:"outdated_rebases"`
	MostShared   uint64 `json:"most_shared_kib"` // largest amount that a single rebase has made shared
	MostMappings uint64 `json:"most_mappings"`
	DeepestChain int    `json:"deepest_chain"` // most memory layers above the base
	// Pages that a live branch copied because a vCPU wrote to them.
	Faults uint64 `json:"write_faults"`
	// Live branches that stopped the guest until the copy was finished.
	Storms       int    `json:"storms"`
	MostDirtyMiB uint64 `json:"most_dirty_mib"` // largest amount of dirty memory in a single branch
	Mismatches   int    `json:"mismatches"`
	MostOwnFiles int    `json:"vmm_own_fds"` // descriptors of a source's VMM, without disk layers
	// Largest private memory of a VMM, without the guest's memory.
	MostOwnKiB uint64   `json:"vmm_own_memory_kib"`
	Errors     []string `json:"errors,omitempty"`
}

// NewReport starts the clock. Messages about the run are written to out as it proceeds.
func NewReport(seed uint64, out io.Writer) *Report {
	r := &Report{ByMode: map[string]int{}}
	r.Start(seed, out)
	return r
}

// Branched counts a complete branch, with the pages that it copied because of write faults.
func (r *Report) Branched(mode string, faults uint64) {
	r.Lock()
	defer r.Unlock()
	r.Branches++
	r.ByMode[mode]++
	r.Faults += faults
}

func (r *Report) branched(p *pending) {
	r.Branched(p.req.Mode.String(), p.copied.Faults)
	r.Lock()
	defer r.Unlock()
	r.MostDirtyMiB = max(r.MostDirtyMiB, p.result.Save.DirtyBytes/mib)
	if p.copied.Stop > 0 {
		r.Storms++
	}
}

func (r *Report) verified() { r.Count(&r.ChildrenVerified) }

// held(files, kib) records the resources that a VMM uses.
func (r *Report) held(files int, kib uint64) {
	r.Lock()
	defer r.Unlock()
	r.MostOwnFiles, r.MostOwnKiB = max(r.MostOwnFiles, files), max(r.MostOwnKiB, kib)
}

// Done returns the number of complete branches.
func (r *Report) Done() int {
	r.Lock()
	defer r.Unlock()
	return r.Branches
}

// Reached records the depth of a snapshot, if it is the largest so far.
func (r *Report) Reached(depth int) {
	r.Lock()
	defer r.Unlock()
	r.DeepestChain = max(r.DeepestChain, depth)
}

// Fail records the error that ended the run, and counts damage.
func (r *Report) Fail(err error) {
	r.Lock()
	defer r.Unlock()
	var m *guest.Mismatch
	if errors.As(err, &m) {
		r.Mismatches += len(m.Found)
	}
	r.Errors = append(r.Errors, err.Error())
}

// Line returns the counts in one line.
func (r *Report) Line() string {
	r.Lock()
	defer r.Unlock()
	return fmt.Sprintf("%d branches (live %d, diff %d, full %d), %d children and %d sources verified, depth %d, "+
		"%d kills of VMMs and %d of the daemon, %d branches cut off, %d rollbacks, %d suspensions, %d removals, "+
		"%d rebases (%d refused, %d outdated, up to %d mappings), %d races, %d refused, "+
		"%d without room (%d under fire), %d on full file systems, %d write faults, "+
		"%d storms, up to %d MiB dirty, %d mismatches, %.0f s",
		r.Branches, r.ByMode["live"], r.ByMode["diff"], r.ByMode["full"], r.ChildrenVerified, r.SourcesVerified,
		r.DeepestChain, r.Kills, r.DaemonKills, r.CutOff, r.Rollbacks, r.Suspensions, r.Removals,
		r.Rebases, r.NotKept, r.Outdated, r.MostMappings, r.Races, r.Refused,
		r.Failed, r.FailedUnderFire, r.FullFS, r.Faults,
		r.Storms, r.MostDirtyMiB, r.Mismatches, r.Elapsed())
}

// Write writes the report to path, completely or not at all.
func (r *Report) Write(path string) error {
	r.Lock()
	defer r.Unlock()
	return r.WriteLocked(path, r)
}

// rebased(result) records a rebase.
func (r *Report) rebased(result vmmproto.RebaseResult) {
	r.Lock()
	defer r.Unlock()
	r.Rebases++
	r.MostShared, r.MostMappings = max(r.MostShared, result.Bytes>>10), max(r.MostMappings, result.Mappings)
}
