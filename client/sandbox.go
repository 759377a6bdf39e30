package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
)

// Sandbox is a VM forked from a snapshot.
type Sandbox struct {
	ID             string   `json:"id"`
	SnapshotTag    string   `json:"snapshot_tag"`
	CreatedAt      int64    `json:"created_at_unix"`
	PID            int      `json:"pid,omitempty"` // of its VMM process
	MemoryLimitMiB uint64   `json:"memory_limit_mib,omitempty"`
	Hostname       string   `json:"hostname"`
	State          string   `json:"state"`                   // "running", "paused", "suspended", "restoring", "exited" or "stopping"
	NotAnswering   bool     `json:"not_answering,omitempty"` // its VMM process hangs: delete it if that lasts
	ExpiresAt      int64    `json:"expires_at_unix,omitempty"`
	ExitReason     string   `json:"exit_reason,omitempty"`
	ExitDetail     string   `json:"exit_detail,omitempty"`
	VMMMS          *float64 `json:"vmm_ms,omitempty"`   // request to all vCPUs entered, milliseconds
	ReadyMS        *float64 `json:"ready_ms,omitempty"` // request to confirmed by its agent, milliseconds
	HasBranched    bool     `json:"has_branched"`
	BranchCount    int      `json:"branch_count"`
	IdleTimeout    float64  `json:"idle_timeout_secs,omitempty"`
	Pooled         bool     `json:"pooled,omitempty"` // its VMM process was waiting in the pool
}

// ForkRequest asks for N children of a snapshot.
type ForkRequest struct {
	SnapshotTag    string            `json:"snapshot_tag,omitempty"`
	SourceID       string            `json:"source_id,omitempty"` // a running sandbox, instead of SnapshotTag
	Mode           string            `json:"mode,omitempty"`      // how that is branched: "live", "diff" or "full"
	N              int               `json:"n"`                   // 1 to 1000
	Env            map[string]string `json:"env,omitempty"`
	HostnamePrefix string            `json:"hostname_prefix,omitempty"`
	AllowPartial   bool              `json:"allow_partial,omitempty"`
	MemoryLimitMiB uint64            `json:"memory_limit_mib,omitempty"`
	TTLSecs        float64           `json:"ttl_secs,omitempty"` // 0: until deleted

	// IdleTimeoutSecs suspends a child after so long without a request; the next one brings it back. 0: never.
	IdleTimeoutSecs float64 `json:"idle_timeout_secs,omitempty"`
}

// Forked is the outcome of a fork. Times are in milliseconds.
type Forked struct {
	Sandboxes   []Sandbox `json:"sandboxes"`
	Failed      int       `json:"failed"`             // only with AllowPartial
	Unconfirmed int       `json:"unconfirmed"`        // of Failed: the agent did not confirm
	VMMWallMS   float64   `json:"vmm_wall_ms"`        // request to the last child's vCPUs entered
	ForkWallMS  float64   `json:"fork_wall_ms"`       // request to the last child confirmed
	PauseMS     float64   `json:"pause_ms,omitempty"` // how long the source sandbox stood still
}

// Stats is what a sandbox costs. Memory is in KiB, of its VMM process.
type Stats struct {
	PID        int    `json:"vmm_pid"`
	PSS        uint64 `json:"pss_kib"`
	Private    uint64 `json:"private_kib"`
	GuestDirty uint64 `json:"guest_dirty_kib"` // guest pages written since the fork
	GuestPSS   uint64 `json:"guest_pss_kib"`   // of PSS: guest RAM
	VMMPrivate uint64 `json:"vmm_private_kib"` // of Private: not guest RAM
	KVMExits   uint64 `json:"kvm_exits"`
	Paused     bool   `json:"paused"`
}

func sandboxPath(id, suffix string) string { return "/v1/sandboxes/" + url.PathEscape(id) + suffix }

// Fork starts children. All of them start or none is left, unless AllowPartial is set.
func (c *Client) Fork(ctx context.Context, req ForkRequest) (f Forked, err error) {
	h, err := c.call(ctx, http.MethodPost, "/v1/sandboxes", req, &f.Sandboxes)
	if err != nil {
		return f, err
	}
	// Headers that are missing or odd leave zeros: an older daemon does not send them.
	f.VMMWallMS, _ = strconv.ParseFloat(h.Get("Forkd-Vmm-Wall-Ms"), 64)
	f.ForkWallMS, _ = strconv.ParseFloat(h.Get("Forkd-Fork-Wall-Ms"), 64)
	f.PauseMS, _ = strconv.ParseFloat(h.Get("Forkd-Pause-Ms"), 64)
	f.Failed, _ = strconv.Atoi(h.Get("Forkd-Failed"))
	f.Unconfirmed, _ = strconv.Atoi(h.Get("Forkd-Unconfirmed"))
	return f, nil
}

// Sandboxes lists all sandboxes, oldest first.
func (c *Client) Sandboxes(ctx context.Context) (list []Sandbox, err error) {
	_, err = c.call(ctx, http.MethodGet, "/v1/sandboxes", nil, &list)
	return list, err
}

// Sandbox describes one sandbox.
func (c *Client) Sandbox(ctx context.Context, id string) (s Sandbox, err error) {
	_, err = c.call(ctx, http.MethodGet, sandboxPath(id, ""), nil, &s)
	return s, err
}

// Kill ends a sandbox and removes everything of it.
func (c *Client) Kill(ctx context.Context, id string) error {
	_, err := c.call(ctx, http.MethodDelete, sandboxPath(id, ""), nil, nil)
	return err
}

// Stats measures a running sandbox.
func (c *Client) Stats(ctx context.Context, id string) (s Stats, err error) {
	_, err = c.call(ctx, http.MethodGet, sandboxPath(id, "/stats"), nil, &s)
	return s, err
}

// maxConsole bounds a console's tail, in bytes.
const maxConsole = 1 << 20

// Console returns the last output of a sandbox's serial console. The guest decides what is in it.
func (c *Client) Console(ctx context.Context, id string) ([]byte, error) {
	resp, err := c.request(ctx, http.MethodGet, sandboxPath(id, "/console"), "", nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(io.LimitReader(resp.Body, maxConsole))
}
