package v1

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/forkd/forkd/internal/sandbox"
	"github.com/forkd/forkd/internal/snapshot"
	"github.com/forkd/forkd/internal/store"
)

type snapshotInfo struct {
	Tag          string   `json:"tag"`
	Dir          string   `json:"dir"`
	CreatedAt    int64    `json:"created_at_unix"`
	BranchedFrom string   `json:"branched_from,omitempty"`
	Warning      string   `json:"warning,omitempty"`
	Status       string   `json:"status"`
	Bootable     bool     `json:"bootable"`
	MemSizeMiB   uint64   `json:"mem_size_mib,omitempty"`
	VCPUs        uint32   `json:"vcpus,omitempty"`
	CPUTemplate  string   `json:"cpu_template,omitempty"`
	Accel        string   `json:"accel,omitempty"`
	Kernel       string   `json:"kernel,omitempty"`
	Warm         []string `json:"warm,omitempty"`
	Sandboxes    int      `json:"sandboxes"`
	Transient    bool     `json:"transient,omitempty"` // goes with its last sandbox

	// How it was branched.
	SandboxID  string   `json:"sandbox_id,omitempty"`
	Mode       string   `json:"mode,omitempty"`
	Fallback   string   `json:"fallback_reason,omitempty"`
	PauseMS    *float64 `json:"pause_ms,omitempty"`
	StopMS     *float64 `json:"storm_stop_ms,omitempty"`
	ReadyMS    *float64 `json:"ready_ms,omitempty"`
	DirtyBytes *uint64  `json:"dirty_bytes,omitempty"`
	DiffBytes  *uint64  `json:"diff_physical_bytes,omitempty"` // the same, under the name of forkd 0.5
	Faults     *uint64  `json:"faults,omitempty"`

	Persist     string   `json:"persist_status"`         // pending, done, or failed (and tried again): it lives as long as its layer in RAM
	PersistedMS *float64 `json:"persisted_ms,omitempty"` // from the request, as ready_ms
}

func snapshotOf(i store.Info) snapshotInfo {
	s := snapshotInfo{
		Tag: i.Tag, Dir: i.Dir, CreatedAt: i.Created.Unix(), BranchedFrom: i.Parent, Status: "ready", Bootable: true, Persist: "done",
		MemSizeMiB: i.Machine.MemoryBytes >> 20, VCPUs: i.Machine.VCPUs, CPUTemplate: i.Machine.Template,
		Accel: i.Machine.Accel, Kernel: i.Guest.Kernel, Warm: i.Guest.Warm, Sandboxes: i.Leases,
	}
	switch {
	case i.Writing:
		s.Status, s.Bootable, s.Persist = "writing", false, "pending"
	case i.Damage != "":
		s.Status, s.Bootable, s.Warning, s.Persist = "failed", false, i.Damage, "failed"
	case i.FlushErr != "":
		s.Persist = "failed"
		s.Warning = fmt.Sprintf("snapshot %q: not on disk, usable until the host restarts, tried again: %s", i.Tag, i.FlushErr)
	case i.InRAM:
		s.Persist = "pending"
	case i.FlushedIn > 0:
		ms := millis(i.FlushedIn)
		if i.Branch != nil {
			ms += float64(i.Branch.ReadyUS) / 1000
		}
		s.PersistedMS = &ms
	}
	s.Transient = i.Transient
	s.setBranch(i.Branch)
	return s
}

// setBranch adds how the snapshot was branched.
func (s *snapshotInfo) setBranch(b *snapshot.Branch) {
	if b == nil {
		return
	}
	pause, ready := float64(b.PauseUS)/1000, float64(b.ReadyUS)/1000
	s.SandboxID, s.Mode, s.Fallback, s.PauseMS, s.ReadyMS = b.SandboxID, b.Mode, b.Fallback, &pause, &ready
	s.DirtyBytes, s.DiffBytes, s.Faults = &b.DirtyBytes, &b.DirtyBytes, &b.Faults
	if b.StopUS > 0 {
		stop := float64(b.StopUS) / 1000
		s.StopMS = &stop
	}
}

func (a *api) listSnapshots(w http.ResponseWriter, _ *http.Request) error {
	list := []snapshotInfo{}
	for _, i := range a.Manager.Snapshots().List() {
		list = append(list, snapshotOf(i))
	}
	return writeJSON(w, http.StatusOK, list)
}

// createSnapshotRequest has the fields of forkd 0.5 and ours. RW and BootWait say nothing to us: the root disk is
// always writable through a private layer, and readiness is announced by the agent.
type createSnapshotRequest struct {
	Tag         string            `json:"tag"`
	Kernel      string            `json:"kernel"`
	Initrd      string            `json:"initrd"`
	Rootfs      string            `json:"rootfs"`
	RW          bool              `json:"rw"`
	Tap         *string           `json:"tap"`
	BootWait    float64           `json:"boot_wait_secs"`
	MemSizeMiB  uint64            `json:"mem_size_mib"`
	VCPUs       uint32            `json:"vcpus"`
	CPUTemplate string            `json:"cpu_template"`
	Env         map[string]string `json:"env"`
	Warmup      warmup            `json:"warmup"`
	Ready       float64           `json:"ready_timeout_secs"`
	WarmupLimit float64           `json:"warmup_timeout_secs"`
}

type warmup struct {
	Commands []string `json:"commands"`
	Python   string   `json:"python"`
}

// bakeTimes is added to the answer of a bake; milliseconds.
type bakeTimes struct {
	snapshotInfo
	BootMS      float64  `json:"boot_ms"`
	WarmupMS    float64  `json:"warmup_ms"`
	SaveMS      float64  `json:"save_ms"`
	PersistMS   float64  `json:"persist_ms"`
	LayerBytes  uint64   `json:"memory_layer_bytes"`
	GuestErrors []string `json:"guest_errors,omitempty"`
}

func (a *api) createSnapshot(w http.ResponseWriter, r *http.Request) error {
	var req createSnapshotRequest
	if err := readJSON(w, r, &req); err != nil {
		return err
	}
	if req.Tap != nil && *req.Tap != "" {
		return badRequest("tap: sandboxes of this daemon need no tap device; leave the field out")
	}
	if req.BootWait < 0 || req.BootWait > 60 {
		return badRequest("boot_wait_secs: %g: want 0 to 60", req.BootWait)
	}
	ready, err := seconds("ready_timeout_secs", req.Ready, 0, maxBoot)
	if err != nil {
		return err
	}
	limit, err := seconds("warmup_timeout_secs", req.WarmupLimit, 0, maxBoot)
	if err != nil {
		return err
	}
	res, err := a.Manager.Bake(r.Context(), sandbox.BakeRequest{
		Tag: req.Tag, Kernel: req.Kernel, Initrd: req.Initrd, Rootfs: req.Rootfs, MemoryMiB: req.MemSizeMiB,
		VCPUs: req.VCPUs, Template: req.CPUTemplate, Env: req.Env, Commands: req.Warmup.Commands,
		Python: req.Warmup.Python, Ready: ready, Warmup: limit,
	})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusCreated, bakeTimes{
		snapshotInfo: snapshotOf(res.Info), BootMS: millis(res.Boot), WarmupMS: millis(res.Warmup),
		SaveMS: millis(res.Save), PersistMS: millis(res.Persist), LayerBytes: res.MemBytes, GuestErrors: res.Ready.Errors,
	})
}

func boolQuery(r *http.Request, name string) (bool, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return r.URL.Query().Has(name), nil // "?force" means true
	}
	v, err := strconv.ParseBool(text)
	if err != nil {
		return false, badRequest("%s: %q: want true or false", name, text)
	}
	return v, nil
}

func (a *api) deleteSnapshot(w http.ResponseWriter, r *http.Request) error {
	cascade, err := boolQuery(r, "cascade")
	if err != nil {
		return err
	}
	force, err := boolQuery(r, "force")
	if err != nil {
		return err
	}
	mode := store.DeleteSingle
	switch {
	case cascade && force:
		return badRequest("cascade and force exclude each other")
	case cascade:
		mode = store.DeleteCascade
	case force:
		mode = store.DeleteForce
	}
	if err := checkTag(r.PathValue("tag")); err != nil {
		return err
	}
	if err := a.Manager.DeleteSnapshot(r.PathValue("tag"), mode); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

type snapshotDetail struct {
	snapshotInfo
	ID             string   `json:"id"`
	MemoryLogical  uint64   `json:"memory_logical_bytes"`
	MemoryPhysical uint64   `json:"memory_physical_bytes"`
	DiskPhysical   uint64   `json:"disk_physical_bytes"`
	VMStateBytes   uint64   `json:"vmstate_bytes"`
	ParentTag      string   `json:"parent_tag,omitempty"`
	ParentHash     string   `json:"parent_content_hash,omitempty"`
	ChainDepth     int      `json:"chain_depth"`
	MemoryLayers   int      `json:"memory_layers"`
	DiskLayers     int      `json:"disk_layers"`
	Dependents     []string `json:"dependents"`
	Ancestors      []string `json:"ancestors"`
	Sealed         bool     `json:"sealed"`
}

func (a *api) snapshotInfo(w http.ResponseWriter, r *http.Request) error {
	if err := checkTag(r.PathValue("tag")); err != nil {
		return err
	}
	d, err := a.Manager.Snapshots().Detail(r.PathValue("tag"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, snapshotDetail{
		snapshotInfo: snapshotOf(d.Info), ID: d.ID, MemoryLogical: d.MemoryLogical, MemoryPhysical: d.MemoryPhysical,
		DiskPhysical: d.DiskPhysical, VMStateBytes: d.StateBytes, ParentTag: d.Parent, ParentHash: d.ParentDigest,
		ChainDepth: len(d.Ancestors), MemoryLayers: d.MemoryLayers, DiskLayers: d.DiskLayers, Dependents: append([]string{}, d.Dependents...),
		Ancestors: append([]string{}, d.Ancestors...), Sealed: d.Sealed,
	})
}

func (a *api) verifySnapshot(w http.ResponseWriter, r *http.Request) error {
	if err := checkTag(r.PathValue("tag")); err != nil {
		return err
	}
	start := time.Now()
	if err := a.Manager.Snapshots().Verify(r.Context(), r.PathValue("tag")); err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, map[string]any{"ok": true, "verify_ms": millis(time.Since(start))})
}
