package v1

import (
	"net/http"
	"strconv"
	"time"

	"github.com/forkd/forkd/internal/procmem"
	"github.com/forkd/forkd/internal/sandbox"
	"github.com/forkd/forkd/internal/snapshot"
)

func checkTag(tag string) error {
	if err := snapshot.CheckTag(tag); err != nil {
		return badRequest("tag: %v", err)
	}
	return nil
}

type sandboxInfo struct {
	ID             string   `json:"id"`
	SnapshotTag    string   `json:"snapshot_tag"`
	GuestAddr      string   `json:"guest_addr"` // empty: guests are reached through the daemon
	CreatedAt      int64    `json:"created_at_unix"`
	PID            *int     `json:"pid,omitempty"`
	MemoryLimitMiB *uint64  `json:"memory_limit_mib,omitempty"`
	HasBranched    bool     `json:"has_branched"`
	BranchCount    int      `json:"branch_count"`
	Hostname       string   `json:"hostname"`
	State          string   `json:"state"`
	NotAnswering   bool     `json:"not_answering,omitempty"`
	ExpiresAt      *int64   `json:"expires_at_unix,omitempty"`
	ExitReason     string   `json:"exit_reason,omitempty"`
	ExitDetail     string   `json:"exit_detail,omitempty"`
	VMMMS          *float64 `json:"vmm_ms,omitempty"`
	ReadyMS        *float64 `json:"ready_ms,omitempty"`
	Pooled         bool     `json:"pooled,omitempty"`
	IdleTimeout    float64  `json:"idle_timeout_secs,omitempty"`
}

func sandboxOf(i sandbox.Info) sandboxInfo {
	s := sandboxInfo{
		ID: i.ID, SnapshotTag: i.SnapshotTag, CreatedAt: i.Created.Unix(), Hostname: i.Hostname, State: i.State.String(),
		NotAnswering: i.Silent,
		ExitReason:   i.ExitReason, ExitDetail: i.ExitDetail, Pooled: i.Timing.Pooled,
		HasBranched: i.BranchCount > 0, BranchCount: i.BranchCount, IdleTimeout: i.IdleTimeout.Seconds(),
	}
	if i.PID != 0 {
		s.PID = &i.PID
	}
	if i.MemoryLimitMiB != 0 {
		s.MemoryLimitMiB = &i.MemoryLimitMiB
	}
	if !i.Expires.IsZero() {
		at := i.Expires.Unix()
		s.ExpiresAt = &at
	}
	if i.Timing.Ready != 0 { // not known of a sandbox that an earlier daemon started
		vmm, ready := millis(i.Timing.VMM), millis(i.Timing.Ready)
		s.VMMMS, s.ReadyMS = &vmm, &ready
	}
	return s
}

// createSandboxesRequest has the fields of forkd 0.5 and ours. Its prewarm, live_fork, hugepages and per_child_netns
// chose between mechanisms that are one here; they are accepted and change nothing.
type createSandboxesRequest struct {
	SnapshotTag    string            `json:"snapshot_tag"`
	N              int               `json:"n"`
	PerChildNetns  bool              `json:"per_child_netns"`
	MemoryLimitMiB *uint64           `json:"memory_limit_mib"`
	Prewarm        bool              `json:"prewarm"`
	LiveFork       bool              `json:"live_fork"`
	Hugepages      bool              `json:"hugepages"`
	Env            map[string]string `json:"env"`
	HostnamePrefix string            `json:"hostname_prefix"`
	AllowPartial   bool              `json:"allow_partial"`
	TTL            float64           `json:"ttl_secs"`
	IdleTimeout    float64           `json:"idle_timeout_secs"`
	SourceID       string            `json:"source_id"` // a running sandbox, instead of snapshot_tag
	Mode           string            `json:"mode"`      // how that is branched
}

// Times of a whole fork, in milliseconds, and the number of children that did not start, as response headers: the body
// is the array that clients of forkd 0.5 expect.
const (
	headerVMMWall     = "Forkd-Vmm-Wall-Ms"
	headerForkWall    = "Forkd-Fork-Wall-Ms"
	headerFailed      = "Forkd-Failed"
	headerUnconfirmed = "Forkd-Unconfirmed"
	headerPause       = "Forkd-Pause-Ms" // of the source sandbox
)

// maxTTL bounds ttl_secs: a year.
const maxTTL = 365 * 24 * time.Hour

func (a *api) createSandboxes(w http.ResponseWriter, r *http.Request) error {
	req := createSandboxesRequest{N: 1}
	if err := readJSON(w, r, &req); err != nil {
		return err
	}
	ttl, err := seconds("ttl_secs", req.TTL, 0, maxTTL)
	if err != nil {
		return err
	}
	idle, err := seconds("idle_timeout_secs", req.IdleTimeout, 0, maxTTL)
	if err != nil {
		return err
	}
	if (req.SnapshotTag == "") == (req.SourceID == "") {
		return badRequest("snapshot_tag, source_id: want one of the two")
	}
	if req.Mode != "" && req.SourceID == "" {
		return badRequest("mode: only with source_id")
	}
	fork := sandbox.ForkRequest{
		IdleTimeout: idle,
		Tag:         req.SnapshotTag, N: req.N, Env: req.Env, HostnamePrefix: req.HostnamePrefix,
		AllowPartial: req.AllowPartial, TTL: ttl,
	}
	if req.MemoryLimitMiB != nil {
		fork.MemoryLimitMiB = *req.MemoryLimitMiB
	}
	var res sandbox.ForkResult
	var pause time.Duration
	if req.SourceID != "" {
		res, pause, err = a.forkSource(r, req.SourceID, req.Mode, fork)
	} else {
		res, err = a.Manager.Fork(r.Context(), fork)
	}
	if err != nil {
		return err
	}
	list := make([]sandboxInfo, len(res.Sandboxes))
	for i, s := range res.Sandboxes {
		list[i] = sandboxOf(s)
	}
	h := w.Header()
	h.Set(headerVMMWall, strconv.FormatFloat(millis(res.VMMWall), 'f', 3, 64))
	h.Set(headerForkWall, strconv.FormatFloat(millis(res.ForkWall), 'f', 3, 64))
	h.Set(headerFailed, strconv.Itoa(res.Failed))
	if req.SourceID != "" {
		h.Set(headerPause, strconv.FormatFloat(millis(pause), 'f', 3, 64))
	}
	h.Set(headerUnconfirmed, strconv.Itoa(res.Unconfirmed))
	return writeJSON(w, http.StatusCreated, list)
}

func (a *api) listSandboxes(w http.ResponseWriter, _ *http.Request) error {
	list := []sandboxInfo{}
	for _, i := range a.Manager.List() {
		list = append(list, sandboxOf(i))
	}
	return writeJSON(w, http.StatusOK, list)
}

func (a *api) getSandbox(w http.ResponseWriter, r *http.Request) error {
	s, err := a.Manager.Get(r.PathValue("id"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, sandboxOf(s.Info()))
}

func (a *api) deleteSandbox(w http.ResponseWriter, r *http.Request) error {
	if err := a.Manager.Kill(r.PathValue("id")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

type statsInfo struct {
	PID        int    `json:"vmm_pid"`
	PSS        uint64 `json:"pss_kib"`
	Private    uint64 `json:"private_kib"`
	GuestDirty uint64 `json:"guest_dirty_kib"`
	GuestPSS   uint64 `json:"guest_pss_kib"`
	VMMPrivate uint64 `json:"vmm_private_kib"`
	KVMExits   uint64 `json:"kvm_exits"`
	Paused     bool   `json:"paused"`
}

func (a *api) stats(w http.ResponseWriter, r *http.Request) error {
	st, err := a.Manager.Stats(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	m := st.Memory
	return writeJSON(w, http.StatusOK, statsInfo{
		PID: st.PID, PSS: m.TotalPSS(), Private: m.TotalPrivate(), GuestDirty: st.VMM.GuestDirtyBytes >> 10,
		GuestPSS: m.PSS[procmem.PartGuest], VMMPrivate: m.TotalPrivate() - m.Private[procmem.PartGuest], KVMExits: st.VMM.Exits, Paused: st.VMM.Paused,
	})
}

func (a *api) console(w http.ResponseWriter, r *http.Request) error {
	p, err := a.Manager.Console(r.PathValue("id"))
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(p) // the client has gone if this fails
	return nil
}
