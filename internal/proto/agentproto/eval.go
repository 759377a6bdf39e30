package agentproto

// ExecuteRequest is the body of POST /execute at CodeInterpreterPort. The protocol is E2B's, with
// two additional fields.
type ExecuteRequest struct {
	Code      string `json:"code"`
	ContextID string `json:"context_id,omitempty"`
	// Language is used if ContextID is empty: the code then runs in the default context of the
	// language.
	Language string            `json:"language,omitempty"`
	Env      map[string]string `json:"env_vars,omitempty"`
	// Repr is an addition by forkd. If it is set, the text of a result is its repr, for example
	// with quotes around a string.
	Repr      bool  `json:"repr"`
	TimeoutMS int64 `json:"timeout_ms,omitempty"` // addition by forkd: time limit of the code in ms; 0 means no limit
}
