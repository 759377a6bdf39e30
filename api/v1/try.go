package v1

// TryRequest requests that commands be tried in children of a sandbox: either Args in each of N
// children, or each command of Each in a child of its own.
type TryRequest struct {
	N           int               `json:"n,omitempty"` // at most MaxTry
	Args        []string          `json:"args,omitempty"`
	Each        [][]string        `json:"each,omitempty"`
	Env         map[string]string `json:"env,omitempty"`
	Cwd         string            `json:"cwd,omitempty"`
	User        string            `json:"user,omitempty"`
	TimeoutSecs float64           `json:"timeout_secs,omitempty"` // of each command and of each judge; 0: 600

	// Judge is a command that runs in each child after the child's own command. The last line of its
	// output must be a number, the score.
	Judge []string `json:"judge,omitempty"`
	// Keep is "all", "first", "best" or "none". Empty: "best" with Judge, else "first" with Promote, else
	// "none".
	Keep    string            `json:"keep,omitempty"`
	Promote bool              `json:"promote,omitempty"` // let the sandbox go on as the winner
	Mode    string            `json:"mode,omitempty"`    // of the branches; empty: live
	Labels  map[string]string `json:"labels,omitempty"`  // of the children
}

// Bounds of a try. The response has the first MaxTryOutput bytes of each output of a command.
const (
	MaxTry       = 64        // children
	MaxTryOutput = 256 << 10 // bytes
)

// TryEvent is one line of the response to a TryRequest, with exactly one field. The first line has
// Started. A line with Result follows for each child when its command and its judge have ended. The
// last line has End, or Error if no child is left.
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
	Sandboxes  []string `json:"sandboxes"` // ids
	PauseMS    float64  `json:"pause_ms"`  // how long the sandbox was paused
	ForkWallMS float64  `json:"fork_wall_ms"`
}

// TryResult is the result of one child. Index is its number, from 0.
type TryResult struct {
	Index     int    `json:"index"`
	SandboxID string `json:"sandbox_id"`
	// Exec is the end of the command, with the first MaxTryOutput bytes of each output. It is nil if the
	// end is unknown. Error is the reason then; with Stopped, it is that another child has won.
	Exec    *ExecResult `json:"exec,omitempty"`
	Stopped bool        `json:"stopped,omitempty"`
	Error   string      `json:"error,omitempty"`
	MS      float64     `json:"ms"` // run time of the command
	// After the command: memory that only this child uses, and what it has written since the branch.
	// Absent if unknown.
	PrivateKiB *uint64 `json:"private_kib,omitempty"`
	MemoryKiB  *uint64 `json:"memory_written_kib,omitempty"`
	DiskKiB    *uint64 `json:"disk_written_kib,omitempty"`

	Score      *float64 `json:"score,omitempty"`       // of the judge
	JudgeError string   `json:"judge_error,omitempty"` // why the judge gave no score
}

// TryEnd says what is left.
type TryEnd struct {
	Keep     string      `json:"keep"`
	Winner   *int        `json:"winner,omitempty"`   // index of the first or best child; absent: there is none
	Kept     []Sandbox   `json:"kept"`               // the children that stay
	Promoted *RolledBack `json:"promoted,omitempty"` // the sandbox, now as the winner was
}
