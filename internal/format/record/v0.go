package record

import (
	"encoding/json"
	"time"
)

// This file has the records of version 0, which forkd wrote before this package existed. These
// records had no version field, and their form never changes. All of them contained a network
// policy. For a sandbox without a network setting, the policy was "public". So a record without a
// policy is damaged, even in version 0.

type sandboxV0 struct {
	ID          string    `json:"id"`
	SnapshotTag string    `json:"snapshot_tag"`
	SnapshotID  string    `json:"snapshot_id"`
	Origin      string    `json:"origin,omitempty"`
	Hostname    string    `json:"hostname"`
	Owner       string    `json:"owner,omitempty"`
	PID         int       `json:"pid"`
	Created     time.Time `json:"created"`
	MemoryBytes uint64    `json:"memory_bytes"`
	Expires     time.Time `json:"expires,omitzero"`
	Fork        string    `json:"fork,omitempty"`
	Protocol    int       `json:"vmm_protocol"`

	ExpirySuspends bool            `json:"expiry_suspends,omitempty"`
	Annotation     json.RawMessage `json:"annotation,omitempty"`

	Env         map[string]string `json:"env,omitempty"`
	Network     networkV0         `json:"network"`
	Limits      limitsV0          `json:"limits,omitzero"`
	Labels      map[string]string `json:"labels,omitempty"`
	IdleTimeout int64             `json:"idle_timeout,omitempty"` // nanoseconds
	AutoResume  bool              `json:"auto_resume,omitempty"`

	Frozen   []topV0  `json:"frozen,omitempty"`
	Top      string   `json:"top,omitempty"`
	Tops     int      `json:"tops,omitempty"`
	Branches []string `json:"branches,omitempty"`
	Count    int      `json:"branch_count,omitempty"`
	Suspends int      `json:"suspends,omitempty"`

	Rebased  *rebasedV0       `json:"rebased,omitempty"`
	Rebasing *pendingRebaseV0 `json:"rebasing,omitempty"`

	Unique *uniqueV0 `json:"unique,omitempty"`
	Strict bool      `json:"unique_strict,omitempty"`

	Paused    bool          `json:"paused,omitempty"`
	Pending   *pendingTopV0 `json:"pending,omitempty"`
	Restoring bool          `json:"restoring,omitempty"`
}

type networkV0 struct {
	Policy struct {
		Mode     string   `json:"mode"`
		Allow    []string `json:"allow,omitempty"`
		Deny     []string `json:"deny,omitempty"`
		AllowECH bool     `json:"allow_ech,omitempty"`
	} `json:"policy"`
	Limits struct {
		BytesPerSecond   uint64 `json:"bytes_per_second,omitempty"`
		PacketsPerSecond uint32 `json:"packets_per_second,omitempty"`
		Connections      uint32 `json:"connections,omitempty"`
	} `json:"limits,omitzero"`
}

type limitsV0 struct {
	MemoryMiB        uint64  `json:"memory_mib,omitempty"`
	SwapMiB          uint64  `json:"swap_mib,omitempty"`
	CPUs             float64 `json:"cpus,omitempty"`
	CPUWeight        uint32  `json:"cpu_weight,omitempty"`
	IOBytesPerSecond uint64  `json:"io_bytes_per_second,omitempty"`
	IOOpsPerSecond   uint64  `json:"io_ops_per_second,omitempty"`
}

type topV0 struct {
	Name  string `json:"name"`
	Owner string `json:"owner"`
}

type pendingTopV0 struct {
	Name  string `json:"name"`
	Owner string `json:"owner"`
	Swaps uint64 `json:"swaps"`
}

type rebasedV0 struct {
	ID   string `json:"id"`
	Line int    `json:"line"`
}

type pendingRebaseV0 struct {
	To      rebasedV0 `json:"to"`
	Rebases uint64    `json:"rebases"`
}

type uniqueV0 struct {
	Reseeded []generatorV0 `json:"Reseeded"`
	Repeats  []generatorV0 `json:"Repeats"`
	More     uint32        `json:"More"`
}

type generatorV0 struct {
	PID     uint32 `json:"PID"`
	Program string `json:"Program"`
	Library string `json:"Library"`
}

// upgrade returns the record in its present form.
func (r *sandboxV0) upgrade() Sandbox {
	s := Sandbox{
		ID: r.ID, SnapshotTag: r.SnapshotTag, SnapshotID: r.SnapshotID, Origin: r.Origin, Hostname: r.Hostname,
		Owner: r.Owner, PID: r.PID, Protocol: r.Protocol, Created: r.Created, Expires: r.Expires,
		MemoryBytes: r.MemoryBytes, Fork: r.Fork,
		Network: Network{Mode: r.Network.Policy.Mode, Allow: r.Network.Policy.Allow, Deny: r.Network.Policy.Deny,
			AllowECH: r.Network.Policy.AllowECH, BytesPerSecond: r.Network.Limits.BytesPerSecond,
			PacketsPerSecond: r.Network.Limits.PacketsPerSecond, Connections: r.Network.Limits.Connections},
		Limits: Limits(r.Limits), Env: r.Env, Labels: r.Labels, Annotation: r.Annotation,
		IdleTimeoutNS: r.IdleTimeout, ExpirySuspends: r.ExpirySuspends, AutoResume: r.AutoResume, Strict: r.Strict,
		Top: r.Top, Tops: r.Tops, Branches: r.Branches, Count: r.Count, Suspends: r.Suspends,
		Rebased: (*Rebased)(r.Rebased), Paused: r.Paused, Restoring: r.Restoring,
	}
	if p := r.Pending; p != nil {
		s.Pending = &PendingTop{Name: p.Name, Owner: p.Owner, Swaps: p.Swaps}
	}
	for _, top := range r.Frozen {
		s.Frozen = append(s.Frozen, FrozenTop(top))
	}
	if p := r.Rebasing; p != nil {
		s.Rebasing = &PendingRebase{To: Rebased(p.To), Rebases: p.Rebases}
	}
	if u := r.Unique; u != nil {
		s.Unique = &Unique{Reseeded: generators(u.Reseeded), Repeats: generators(u.Repeats), More: u.More}
	}
	return s
}

func generators(old []generatorV0) (list []Generator) {
	for _, g := range old {
		list = append(list, Generator(g))
	}
	return list
}

type suspendedV0 struct {
	Record sandboxV0 `json:"record"`
}

// upgrade returns the record in its present form. It drops the process id and the protocol of the
// sandbox's former VMM, which version 0 still contained.
func (r *suspendedV0) upgrade() Sandbox {
	s := r.Record.upgrade()
	s.PID, s.Protocol = 0, 0
	return s
}

type workspaceV0 struct {
	ID         string    `json:"id"`
	Name       string    `json:"name"`
	SourceTag  string    `json:"source_snapshot_tag"`
	SandboxID  string    `json:"sandbox_id"`
	Created    time.Time `json:"created"`
	LastActive time.Time `json:"last_active"`
}

type onceV0 struct {
	At      time.Time `json:"at"`
	Request string    `json:"request"`
	Answer  *answerV0 `json:"answer,omitempty"`
}

type answerV0 struct {
	Status int             `json:"status"`
	Body   json.RawMessage `json:"body"`
}

// upgrade returns the record in its present form.
func (r *onceV0) upgrade() Once {
	return Once{At: r.At, Request: r.Request, Answer: (*Answer)(r.Answer)}
}
