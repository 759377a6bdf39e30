package torture

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/proto/vmmproto"
	"github.com/forkd/forkd/test/torture/guest"
)

// Report counts the operations of a run. It is written as out/torture.json.
type Report struct {
	Branches         int            `json:"branches"` // complete branches
	ByMode           map[string]int `json:"by_mode"`
	ChildrenVerified int            `json:"children_verified"`
	SourcesVerified  int            `json:"sources_verified"`
	Refused          int            `json:"refused"`           // branches requested while another was being copied
	Failed           int            `json:"failed"`            // branches that failed for lack of room, as expected
	FailedUnderFire  int            `json:"failed_under_fire"` // of these, live ones with write faults
	FullFS           int            `json:"whole_on_full_fs"`  // complete branches on a full file system
	Races            int            `json:"races"`             // branches concurrent with another request
	Kills            int            `json:"kills"`             // VMMs killed in the middle of a branch
	Rollbacks        int            `json:"rollbacks"`
	Rebases          int            `json:"rebases"`
	NotKept          int            `json:"not_rebased"`     // branches after which another operation had come
	MostShared       uint64         `json:"most_shared_kib"` // maximum of one rebase
	MostMappings     uint64         `json:"most_mappings"`
	DeepestChain     int            `json:"deepest_chain"`  // memory layers over the base
	Faults           uint64         `json:"write_faults"`   // pages that a live branch copied because a vCPU wrote to them
	Storms           int            `json:"storms"`         // live branches that ended by stopping the guest
	MostDirtyMiB     uint64         `json:"most_dirty_mib"` // maximum of one branch
	Mismatches       int            `json:"mismatches"`
	MostOwnFiles     int            `json:"vmm_own_fds"`        // of a source's VMM, besides disk layers
	MostOwnKiB       uint64         `json:"vmm_own_memory_kib"` // maximum of private memory of a VMM, besides the guest's
	Errors           []string       `json:"errors,omitempty"`
	Seconds          float64        `json:"duration_s"`
	Seed             uint64         `json:"seed"`

	mu    sync.Mutex
	start time.Time
}

// NewReport starts the clock.
func NewReport(seed uint64) *Report {
	return &Report{Seed: seed, ByMode: map[string]int{}, start: time.Now()}
}

func (r *Report) branched(p *pending) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Branches++
	r.ByMode[p.req.Mode.String()]++
	r.Faults += p.copied.Faults
	r.MostDirtyMiB = max(r.MostDirtyMiB, p.result.Save.DirtyBytes/mib)
	if p.copied.Stop > 0 {
		r.Storms++
	}
}

func (r *Report) verified() { r.count(&r.ChildrenVerified) }

func (r *Report) count(n *int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*n++
}

// held records the resources of a VMM.
func (r *Report) held(files int, kib uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.MostOwnFiles, r.MostOwnKiB = max(r.MostOwnFiles, files), max(r.MostOwnKiB, kib)
}

// done returns the number of complete branches.
func (r *Report) done() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.Branches
}

// reached records the depth of a snapshot.
func (r *Report) reached(depth int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.DeepestChain = max(r.DeepestChain, depth)
}

// Fail records the error that ended the run.
func (r *Report) Fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var m *guest.Mismatch
	if errors.As(err, &m) {
		r.Mismatches += len(m.Found)
	}
	r.Errors = append(r.Errors, err.Error())
}

// Line returns the counts in one line.
func (r *Report) Line() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return fmt.Sprintf("%d branches (live %d, diff %d, full %d), %d children and %d sources verified, depth %d, %d kills, "+
		"%d rollbacks, %d rebases (%d refused, up to %d mappings), %d races, %d refused, "+
		"%d without room (%d under fire), %d on full file systems, %d write faults, "+
		"%d storms, up to %d MiB dirty, %d mismatches, %.0f s",
		r.Branches, r.ByMode["live"], r.ByMode["diff"], r.ByMode["full"], r.ChildrenVerified, r.SourcesVerified,
		r.DeepestChain, r.Kills,
		r.Rollbacks, r.Rebases, r.NotKept, r.MostMappings, r.Races, r.Refused,
		r.Failed, r.FailedUnderFire, r.FullFS, r.Faults,
		r.Storms, r.MostDirtyMiB, r.Mismatches, time.Since(r.start).Seconds())
}

// Write writes the report to path, completely or not at all.
func (r *Report) Write(path string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Seconds = time.Since(r.start).Seconds()
	return atomicfile.WriteJSON(path, r)
}

// rebased records a rebase.
func (r *Report) rebased(result vmmproto.RebaseResult) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Rebases++
	r.MostShared, r.MostMappings = max(r.MostShared, result.Bytes>>10), max(r.MostMappings, result.Mappings)
}
