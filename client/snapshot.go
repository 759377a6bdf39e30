package client

import (
	"context"
	"net/http"
	"net/url"
)

// Snapshot is a parent that sandboxes are forked from.
type Snapshot struct {
	Tag          string   `json:"tag"`
	Dir          string   `json:"dir"`
	CreatedAt    int64    `json:"created_at_unix"`
	BranchedFrom string   `json:"branched_from,omitempty"`
	Warning      string   `json:"warning,omitempty"`
	Status       string   `json:"status"` // "writing", "ready" or "failed"
	Bootable     bool     `json:"bootable"`
	MemSizeMiB   uint64   `json:"mem_size_mib,omitempty"`
	VCPUs        uint32   `json:"vcpus,omitempty"`
	CPUTemplate  string   `json:"cpu_template,omitempty"`
	Accel        string   `json:"accel,omitempty"`
	Kernel       string   `json:"kernel,omitempty"`
	Warm         []string `json:"warm,omitempty"`
	Sandboxes    int      `json:"sandboxes"`           // running from it
	Transient    bool     `json:"transient,omitempty"` // removed with the last of them

	// Of a branch. Times are in milliseconds; those of ReadyMS and PersistedMS begin with the request.
	SandboxID   string   `json:"sandbox_id,omitempty"`
	Mode        string   `json:"mode,omitempty"`
	Fallback    string   `json:"fallback_reason,omitempty"` // why another mode than the one asked for
	PauseMS     *float64 `json:"pause_ms,omitempty"`        // the sandbox stood still
	StormStopMS *float64 `json:"storm_stop_ms,omitempty"`   // and again, because it wrote faster than could be copied
	ReadyMS     *float64 `json:"ready_ms,omitempty"`        // sandboxes can be forked from it
	DirtyBytes  *uint64  `json:"dirty_bytes,omitempty"`     // memory that the sandbox had written
	DiffBytes   *uint64  `json:"diff_physical_bytes,omitempty"`
	Faults      *uint64  `json:"faults,omitempty"` // pages copied because the sandbox wrote them meanwhile

	// Persist is "pending", "done", or "failed": it lives as long as its layer in RAM, and writing it is tried again.
	Persist     string   `json:"persist_status"`
	PersistedMS *float64 `json:"persisted_ms,omitempty"`
}

// SnapshotDetail is everything the daemon knows about a snapshot. Sizes are in bytes.
type SnapshotDetail struct {
	Snapshot
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
	Ancestors      []string `json:"ancestors"` // root first
	Sealed         bool     `json:"sealed"`    // digests are recorded
}

// BakeRequest asks for a snapshot. Paths are those of the daemon's host.
type BakeRequest struct {
	Tag               string            `json:"tag"`
	Kernel            string            `json:"kernel"`
	Initrd            string            `json:"initrd"`
	Rootfs            string            `json:"rootfs"`
	MemSizeMiB        uint64            `json:"mem_size_mib,omitempty"` // 0: 512
	VCPUs             uint32            `json:"vcpus,omitempty"`        // 0: 1
	CPUTemplate       string            `json:"cpu_template,omitempty"`
	Env               map[string]string `json:"env,omitempty"`
	Warmup            Warmup            `json:"warmup,omitzero"`
	ReadyTimeoutSecs  float64           `json:"ready_timeout_secs,omitempty"`
	WarmupTimeoutSecs float64           `json:"warmup_timeout_secs,omitempty"`
}

// Warmup is run in a parent before it is saved: the commands one after another, each by /bin/sh -c, then the Python
// code in the warm interpreter.
type Warmup struct {
	Commands []string `json:"commands,omitempty"`
	Python   string   `json:"python,omitempty"`
}

// Baked is a new snapshot and how long its steps took, in milliseconds.
type Baked struct {
	Snapshot
	BootMS           float64  `json:"boot_ms"`
	WarmupMS         float64  `json:"warmup_ms"`
	SaveMS           float64  `json:"save_ms"`
	PersistMS        float64  `json:"persist_ms"`
	MemoryLayerBytes uint64   `json:"memory_layer_bytes"`
	GuestErrors      []string `json:"guest_errors,omitempty"` // what the guest's agent could not set up
}

// DeleteOptions say what happens to snapshots that build on a deleted one; by default the deletion is refused.
type DeleteOptions struct {
	Cascade bool // delete them too
	Force   bool // leave them behind: they need nothing of it
}

func snapshotPath(tag, suffix string) string { return "/v1/snapshots/" + url.PathEscape(tag) + suffix }

// Snapshots lists all snapshots.
func (c *Client) Snapshots(ctx context.Context) (list []Snapshot, err error) {
	_, err = c.call(ctx, http.MethodGet, "/v1/snapshots", nil, &list)
	return list, err
}

// Snapshot describes one snapshot.
func (c *Client) Snapshot(ctx context.Context, tag string) (d SnapshotDetail, err error) {
	_, err = c.call(ctx, http.MethodGet, snapshotPath(tag, "/info"), nil, &d)
	return d, err
}

// Bake boots a parent, warms it up and makes it a snapshot. It may take minutes.
func (c *Client) Bake(ctx context.Context, req BakeRequest) (b Baked, err error) {
	_, err = c.call(ctx, http.MethodPost, "/v1/snapshots", req, &b)
	return b, err
}

// DeleteSnapshot removes a snapshot.
func (c *Client) DeleteSnapshot(ctx context.Context, tag string, opts DeleteOptions) error {
	query := url.Values{}
	if opts.Cascade {
		query.Set("cascade", "true")
	}
	if opts.Force {
		query.Set("force", "true")
	}
	suffix := ""
	if len(query) > 0 {
		suffix = "?" + query.Encode()
	}
	_, err := c.call(ctx, http.MethodDelete, snapshotPath(tag, suffix), nil, nil)
	return err
}

// VerifySnapshot compares every file of a snapshot with its digest.
func (c *Client) VerifySnapshot(ctx context.Context, tag string) error {
	_, err := c.call(ctx, http.MethodPost, snapshotPath(tag, "/verify"), nil, nil)
	return err
}
