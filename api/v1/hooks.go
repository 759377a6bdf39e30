package v1

// Hooks are commands that the daemon runs in a sandbox before or after some operations. A request
// replaces all hooks, so an omitted hook is removed.
type Hooks struct {
	BeforeBranch  *Hook `json:"before_branch,omitempty"`  // before a client's branch pauses the sandbox
	AfterFork     *Hook `json:"after_fork,omitempty"`     // in a child, before clients can reach it
	BeforeSuspend *Hook `json:"before_suspend,omitempty"` // before the sandbox is suspended
	AfterResume   *Hook `json:"after_resume,omitempty"`   // after a suspension, before clients can reach the sandbox
}

// Hook is a command.
type Hook struct {
	Args        []string `json:"args"`                   // command and arguments, which no shell interprets
	TimeoutSecs int      `json:"timeout_secs,omitempty"` // 1 to 300; 30 if omitted
	OnFailure   string   `json:"on_failure,omitempty"`   // "abort" the operation, or "continue"; omitted: abort
}
