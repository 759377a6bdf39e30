package v1

// TryRequest requests that commands be tried in children of a sandbox: either Args in each of N
// children, or each command of Each in a separate child.
type TryRequest struct {
	N           int               `json:"n,omitempty"` // number of children that run Args, at most MaxTry
	Args        []string          `json:"args,omitempty"`
	Each        [][]string        `json:"each,omitempty"`
	Env         map[string]string `json:"env,omitempty"`
	Cwd         string            `json:"cwd,omitempty"`
	User        string            `json:"user,omitempty"`
	TimeoutSecs float64           `json:"timeout_secs,omitempty"` // limit for each command and each judge; 0 means 600

	// Judge is a command that runs in each child after the child's own command. The last line of its
	// stdout must be a number, the score of the child.
	Judge []string `json:"judge,omitempty"`
	// Keep says which children stay: "all", "first", "best" or "none". If it is empty, the default
	// is "best" if Judge is set, "first" if only Promote is set, and "none" if neither is set.
	Keep    string            `json:"keep,omitempty"`
	Promote bool              `json:"promote,omitempty"` // the sandbox takes over the winner's state; no child stays
	Mode    string            `json:"mode,omitempty"`    // mode of the branches; empty: live
	Labels  map[string]string `json:"labels,omitempty"`  // labels of the children

	// HoldEffects is a hold for the children, in addition to the hold of the sandbox. The results
	// then list the held requests. nil: the hold of the sandbox, if it has one.
	HoldEffects *Hold `json:"hold_effects,omitempty"`
}

// Bounds of a try. The response has the first MaxTryOutput bytes of each output of a command.
const (
	MaxTry       = 64        // number of children
	MaxTryOutput = 256 << 10 // bytes
)

// TryEvent is one line of the response to a TryRequest, with exactly one field. The first line has
// Started. A line with Result follows for each child when its command and its judge have ended. The
// last line has End, or Error if no child remains.
type TryEvent struct {
	Started   *TryStarted `json:"started,omitempty"`
	Result    *TryResult  `json:"result,omitempty"`
	End       *TryEnd     `json:"end,omitempty"`
	Keepalive bool        `json:"keepalive,omitempty"`
	Error     string      `json:"error,omitempty"`
	Status    int         `json:"status,omitempty"` // with Error: the HTTP status for the same problem
	Code      string      `json:"code,omitempty"`
}

// TryStarted lists the children, in the order of the commands.
type TryStarted struct {
	Sandboxes  []string `json:"sandboxes"` // ids of the children
	PauseMS    float64  `json:"pause_ms"`  // how long the sandbox was paused
	ForkWallMS float64  `json:"fork_wall_ms"`
}

// TryResult is the result of one child. Index is its number, from 0.
type TryResult struct {
	Index     int    `json:"index"`
	SandboxID string `json:"sandbox_id"`
	// Exec says how the command ended, with the first MaxTryOutput bytes of each output. If the end
	// is unknown, Exec is nil and Error is the reason. Stopped means that the command was stopped
	// because another child had won.
	Exec    *ExecResult `json:"exec,omitempty"`
	Stopped bool        `json:"stopped,omitempty"`
	Error   string      `json:"error,omitempty"`
	MS      float64     `json:"ms"` // run time of the command
	// Figures at the end of the command; nil if unknown. PrivateKiB is the memory that only this
	// child uses. MemoryKiB and DiskKiB are the guest memory and the disk that the child has
	// written since the branch.
	PrivateKiB *uint64 `json:"private_kib,omitempty"`
	MemoryKiB  *uint64 `json:"memory_written_kib,omitempty"`
	DiskKiB    *uint64 `json:"disk_written_kib,omitempty"`

	Score      *float64 `json:"score,omitempty"`       // score by the judge; nil if there is none
	JudgeError string   `json:"judge_error,omitempty"` // why the judge gave no score

	Effects       []Effect `json:"effects,omitempty"`        // requests that were held, with HoldEffects
	EffectsMissed uint64   `json:"effects_missed,omitempty"` // see Effects.Missed
}

// TryEnd says which child has won, and which children stay.
type TryEnd struct {
	Keep     string      `json:"keep"`
	Winner   *int        `json:"winner,omitempty"`   // index of the first or best child; nil if there is none
	Kept     []Sandbox   `json:"kept"`               // the children that stay
	Promoted *RolledBack `json:"promoted,omitempty"` // the sandbox after the promotion; nil if there was none
}
