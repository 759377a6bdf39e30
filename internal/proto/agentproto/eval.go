package agentproto

// ExecuteRequest is the body of POST /execute on the code interpreter's port. The protocol is
// E2B's, extended by two fields.
type ExecuteRequest struct {
	Code      string            `json:"code"`
	ContextID string            `json:"context_id,omitempty"`
	Language  string            `json:"language,omitempty"` // without a context: the language's default context
	Env       map[string]string `json:"env_vars,omitempty"`
	Repr      bool              `json:"repr"`                 // forkd only: a result's text is its repr, with quotes
	TimeoutMS int64             `json:"timeout_ms,omitempty"` // forkd only: time limit of the code; 0: none
}
