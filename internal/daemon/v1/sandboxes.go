package v1

import (
	"math"
	"net/http"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/compat05/agent05"
	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/procmem"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/tenancy"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/proto/agentproto"
)

func checkTag(tag string) error {
	if err := snapshot.CheckTag(tag); err != nil {
		return &invalid.Error{Field: "tag", Reason: err.Error()}
	}
	return nil
}

func (a *api) sandboxOf(view *tenancy.View, i sandbox.Info) apiv1.Sandbox {
	s := apiv1.Sandbox{
		ID: i.ID, SnapshotTag: i.SnapshotTag, CreatedAt: i.Created.Unix(), Hostname: i.Hostname, State: i.State.String(),
		Created:      i.Created.UTC().Format(time.RFC3339Nano),
		NotAnswering: i.Silent, DiskFull: i.DiskFull,
		ExitReason: i.ExitReason, ExitDetail: i.ExitDetail, PID: i.PID,
		MemoryLimitMiB: i.Limits.MemoryMiB, LimitEnforced: i.Limits.MemoryMiB != 0, Pooled: i.Timing.Pooled,
		HasBranched: i.BranchCount > 0, BranchCount: i.BranchCount, IdleTimeout: i.IdleTimeout.Seconds(),
		Owner: view.OwnerOf(i), Workspace: i.Workspace,
		Network: i.Network.Policy.Mode.String(), Limits: apiv1.Limits(i.Limits), Labels: i.Labels, Calls: i.Calls,
		Unique: uniqueOf(i.Unique), UniqueStrict: i.Strict, Volumes: mountsFor(i.Volumes),
	}
	s.LatestTag = view.TagOf(&i.At)
	s.DeletedBytes = view.UnnamedBytes(i)
	if a.GuestPort != 0 {
		s.GuestAddr = agent05.Addr(i.ID, a.GuestPort)
	}
	if !i.Expires.IsZero() {
		s.ExpiresAt = i.Expires.Unix()
	}
	if i.Timing.Ready != 0 { // unknown if an earlier daemon started the sandbox
		vmm, ready := millis(i.Timing.VMM), millis(i.Timing.Ready)
		s.VMMMS, s.ReadyMS = &vmm, &ready
	}
	return s
}

// sandboxesFor returns a function that describes sandboxes for the client of a request.
func (a *api) sandboxesFor(r *http.Request) func(sandbox.Info) apiv1.Sandbox {
	view := a.view(r)
	return func(i sandbox.Info) apiv1.Sandbox { return a.sandboxOf(view, i) }
}

// uniqueOf converts the agent's report about uniqueness. Empty lists become [] in JSON.
func uniqueOf(found *agentproto.Unique) *apiv1.Unique {
	if found == nil {
		return nil
	}
	u := &apiv1.Unique{Reseeded: []apiv1.Generator{}, Repeats: []apiv1.Generator{}, More: found.More}
	for _, g := range found.Reseeded {
		u.Reseeded = append(u.Reseeded, apiv1.Generator(g))
	}
	for _, g := range found.Repeats {
		u.Repeats = append(u.Repeats, apiv1.Generator(g))
	}
	return u
}

// maxTTL bounds ttl_secs to a year.
const maxTTL = 365 * 24 * time.Hour

// createSandboxes is like fork, but for clients of forkd 0.5, which expect an array of the
// children.
func (a *api) createSandboxes(r *http.Request, req *apiv1.ForkRequest) ([]apiv1.Sandbox, error) {
	forked, err := a.fork(r, req)
	return forked.Sandboxes, err
}

// fork answers with the children and the measurements of the fork.
func (a *api) fork(r *http.Request, req *apiv1.ForkRequest) (forked apiv1.Forked, err error) {
	ttl, err := face.Seconds("ttl_secs", req.TTLSecs, 0, maxTTL)
	if err != nil {
		return forked, err
	}
	idle, err := face.Seconds("idle_timeout_secs", req.IdleTimeoutSecs, 0, maxTTL)
	if err != nil {
		return forked, err
	}
	if (req.SnapshotTag == "") == (req.SourceID == "") {
		return forked, invalid.Errorf("snapshot_tag", "want either this or source_id")
	}
	if req.Mode != "" && req.SourceID == "" {
		return forked, invalid.Errorf("mode", "only with source_id")
	}
	network, err := settingOf("network.", req.Network)
	if err != nil {
		return forked, err
	}
	limits, err := limitsOf(req.Limits, req.MemoryLimitMiB)
	if err != nil {
		return forked, err
	}
	hold, err := holdOf(req.HoldEffects)
	if err != nil {
		return forked, err
	}
	fork := sandbox.ForkRequest{
		Hold: hold,
		Tag:  req.SnapshotTag, N: req.N, Env: req.Env, HostnamePrefix: req.HostnamePrefix, AllowPartial: req.AllowPartial,
		Limits: limits, TTL: ttl, IdleTimeout: idle, Network: network, Labels: req.Labels,
		Strict: unique.Strict(req.Unique), Hooks: hooksOf(req.Hooks), Volumes: mountsOf(req.Volumes),
	}
	var res sandbox.ForkResult
	var pause time.Duration
	start := time.Now()
	if req.SourceID != "" {
		res, pause, err = a.forkSource(r, req.SourceID, req.Mode, fork)
	} else {
		res, err = a.view(r).Fork(r.Context(), fork)
	}
	a.Traces.Fork(r, start, req.SnapshotTag+req.SourceID, res, err) // one of SnapshotTag and SourceID is empty
	if err != nil {
		return forked, err
	}
	forked = apiv1.Forked{Sandboxes: make([]apiv1.Sandbox, len(res.Sandboxes)), Failed: res.Failed,
		Unconfirmed: res.Unconfirmed,
		VMMWallMS:   millis(res.VMMWall), ForkWallMS: millis(res.ForkWall), PauseMS: millis(pause)}
	made := audit.From(r.Context())
	for i, s := range res.Sandboxes {
		made.Sandboxes = append(made.Sandboxes, s.ID)
		forked.Sandboxes[i] = a.sandboxOf(a.view(r), s)
	}
	return forked, nil
}

func (a *api) listSandboxes(r *http.Request) (l list[sandbox.Info, apiv1.Sandbox], err error) {
	wanted, err := selectorOf(r)
	if err != nil {
		return l, err
	}
	q := r.URL.Query()
	at, err := face.PlaceOfCursor(q.Get("cursor"))
	if err != nil {
		return l, err
	}
	limit, err := face.Limit(q)
	if err != nil {
		return l, err
	}
	most := math.MaxInt
	if limit > 0 {
		most = limit + 1 // one more than the page, so that write knows whether there is another page
	}
	infos := a.view(r).SandboxPage(at, most, func(i sandbox.Info) bool { return wanted.Match(i.Labels) })
	key := func(i sandbox.Info) string { return face.SandboxKey(i.Created, i.ID) }
	return list[sandbox.Info, apiv1.Sandbox]{infos, key, a.sandboxesFor(r)}, nil
}

// changeLabels sets and removes labels of a sandbox by a JSON merge patch (RFC 7396).
func (a *api) changeLabels(r *http.Request, change *map[string]*string) (apiv1.Sandbox, error) {
	return described(a.sandboxesFor(r))(a.view(r).ChangeLabels(r.Context(), r.PathValue("id"), *change))
}

// setTTL changes the time at which a sandbox is deleted. If the creator of the sandbox chose
// suspension, the sandbox is suspended at this time instead. The sandbox of a workspace cannot have
// such a time.
func (a *api) setTTL(r *http.Request, req *apiv1.TTLRequest) (s apiv1.Sandbox, err error) {
	if req.TTLSecs == nil {
		return s, invalid.Errorf("ttl_secs", "missing: want seconds from now, or 0 for no end")
	}
	ttl, err := face.Seconds("ttl_secs", *req.TTLSecs, 0, maxTTL)
	if err != nil {
		return s, err
	}
	var i sandbox.Info
	err = a.view(r).With(r.Context(), r.PathValue("id"), func(h *sandbox.Held) error {
		was := h.Info()
		e := sandbox.Expiry{Suspends: was.ExpirySuspends}
		if ttl != 0 {
			e.At = time.Now().Add(ttl)
		}
		if err := h.SetExpiry(e); err != nil {
			return err
		}
		i = h.Info()
		return nil
	})
	return described(a.sandboxesFor(r))(i, err)
}

func (a *api) getSandbox(r *http.Request) (apiv1.Sandbox, error) {
	return described(a.sandboxesFor(r))(a.view(r).Sandbox(r.PathValue("id")))
}

func (a *api) deleteSandbox(r *http.Request) error {
	return a.view(r).Kill(r.PathValue("id"))
}

func (a *api) stats(r *http.Request) (out apiv1.Stats, err error) {
	age, err := secsQuery(r, "max_age_secs", 0, tenancy.MaxStatsAge)
	if err != nil {
		return out, err
	}
	st, err := a.view(r).RecentStats(r.Context(), r.PathValue("id"), age)
	if err != nil {
		return out, err
	}
	m := st.Memory
	return apiv1.Stats{
		PID: st.PID, PSS: m.TotalPSS(), Private: m.TotalPrivate(), GuestDirty: st.VMM.GuestDirtyBytes >> 10,
		MemorySince: st.Since.Memory >> 10, DiskSince: st.Since.Disk >> 10,
		GuestPSS: m.PSS[procmem.PartGuest], VMMPrivate: m.TotalPrivate() - m.Private[procmem.PartGuest],
		KVMExits: st.VMM.Exits, Paused: st.VMM.Paused,
		Limits: apiv1.Limits(st.Limits), Usage: a.usageOf(r.PathValue("id"), st.Usage),
	}, nil
}

// written answers with the figures of a sandbox that cost little to measure.
func (a *api) written(r *http.Request) (out apiv1.Written, err error) {
	age, err := secsQuery(r, "max_age_secs", 0, tenancy.MaxStatsAge)
	if err != nil {
		return out, err
	}
	st, err := a.view(r).RecentWritten(r.Context(), r.PathValue("id"), age)
	if err != nil {
		return out, err
	}
	return apiv1.Written{GuestDirty: st.VMM.GuestDirtyBytes >> 10, MemorySince: st.Since.Memory >> 10,
		DiskSince: st.Since.Disk >> 10, Usage: a.usageOf(r.PathValue("id"), st.Usage)}, nil
}
