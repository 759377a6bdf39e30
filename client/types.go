package client

import v1 "github.com/forkd/forkd/api/v1"

// The messages of the API, under this package's names.
type (
	Version          = v1.Version
	LeftAlone        = v1.LeftAlone
	SSH              = v1.SSH
	Sandbox          = v1.Sandbox
	ForkRequest      = v1.ForkRequest
	TTLRequest       = v1.TTLRequest
	Forked           = v1.Forked
	Stats            = v1.Stats
	Written          = v1.Written
	Metrics          = v1.Metrics
	MetricPoint      = v1.MetricPoint
	HostMetrics      = v1.HostMetrics
	HostPoint        = v1.HostPoint
	RollbackRequest  = v1.RollbackRequest
	RolledBack       = v1.RolledBack
	PromoteRequest   = v1.PromoteRequest
	TryRequest       = v1.TryRequest
	TryStarted       = v1.TryStarted
	TryResult        = v1.TryResult
	TryEnd           = v1.TryEnd
	DiffRequest      = v1.DiffRequest
	ExportRequest    = v1.ExportRequest
	ApplyRequest     = v1.ApplyRequest
	Applied          = v1.Applied
	ApplyFile        = v1.ApplyFile
	Diff             = v1.Diff
	DiffFile         = v1.DiffFile
	DiffNode         = v1.DiffNode
	Moves            = v1.Moves
	NodeMoves        = v1.NodeMoves
	RouterNode       = v1.RouterNode
	RouterNodes      = v1.RouterNodes
	SandboxMove      = v1.Move
	MoveStep         = v1.MoveStep
	Departure        = v1.Departure
	ResumeRequest    = v1.ResumeRequest
	SuspendRequest   = v1.SuspendRequest
	Unique           = v1.Unique
	Generator        = v1.Generator
	Snapshot         = v1.Snapshot
	SnapshotDetail   = v1.SnapshotDetail
	BakeRequest      = v1.BakeRequest
	Baked            = v1.Baked
	Family           = v1.Family
	BuildRequest     = v1.BuildRequest
	RegistryAuth     = v1.RegistryAuth
	BuildBoot        = v1.BuildBoot
	BuildEvent       = v1.BuildEvent
	BuildPlan        = v1.BuildPlan
	BuildNote        = v1.BuildNote
	BuildStep        = v1.BuildStep
	BuildOutput      = v1.BuildOutput
	BuildResult      = v1.BuildResult
	HubEvent         = v1.HubEvent
	PushRequest      = v1.PushRequest
	PullRequest      = v1.PullRequest
	CopyRequest      = v1.CopyRequest
	SignRequest      = v1.SignRequest
	Signature        = v1.Signature
	SignatureRequest = v1.SignatureRequest
	FindRequest      = v1.FindRequest
	RemoteSnapshot   = v1.RemoteSnapshot
	HubFile          = v1.HubFile
	HubResult        = v1.HubResult
	Warmup           = v1.Warmup
	Pong             = v1.Pong
	ExecRequest      = v1.ExecRequest
	ExecEnd          = v1.ExecEnd
	ExecResult       = v1.ExecResult
	EvalRequest      = v1.EvalRequest
	EvalResult       = v1.EvalResult
	Workspace        = v1.Workspace
	WorkspaceRequest = v1.WorkspaceRequest
	Volume           = v1.Volume
	VolumeRequest    = v1.VolumeRequest
	VolumeMount      = v1.VolumeMount
	Network          = v1.Network
	NetworkLimits    = v1.NetworkLimits
	NetworkSecret    = v1.NetworkSecret
	NetworkRefusal   = v1.NetworkRefusal
	NetworkAllowed   = v1.NetworkAllowed
	NetworkStats     = v1.NetworkStats
	SandboxNetwork   = v1.SandboxNetwork
	Hold             = v1.Hold
	Effects          = v1.Effects
	Effect           = v1.Effect
	Limits           = v1.Limits
	SandboxLimits    = v1.SandboxLimits
	Hooks            = v1.Hooks
	Hook             = v1.Hook
	Usage            = v1.Usage
	Admission        = v1.Admission
	CachedImage      = v1.CachedImage
	PrunedImages     = v1.PrunedImages

	VolumeSnapshotRequest = v1.VolumeSnapshotRequest

	NetworkConnection = v1.NetworkConnection
)

// CachedBlob is the Kind of a CachedImage that is a compressed file of a snapshot.
const CachedBlob = v1.CachedBlob

// BranchRequest asks for a snapshot of a running sandbox.
type BranchRequest struct {
	Tag       string // empty: the daemon chooses one
	Mode      string // "live" (also if empty), "diff" or "full"
	ParentTag string // the request fails if the sandbox does not run from this snapshot
	NoWait    bool   // return when the sandbox runs again; the snapshot's state is still "writing" then
	DiskOnly  bool   // save the disk without memory, so that forks of the snapshot boot; excludes Mode and NoWait
	Encrypt   bool   // encrypt the snapshot; always done if the sandbox runs from an encrypted one

	Labels map[string]string // labels of the snapshot
}
