package agentproto

// ExecuteRequest is the body of POST /execute on the code interpreter's port. The protocol is
// E2B's, with two fields of forkd's own.
type ExecuteRequest struct {
	Code      string            `json:"code"`
	ContextID string            `json:"context_id,omitempty"`
	Language  string            `json:"language,omitempty"` // instead of a context: the default context of this language
	Env       map[string]string `json:"env_vars,omitempty"`
	Repr      bool              `json:"repr"`                 // forkd's own: a result's text is its repr, with quotes
	TimeoutMS int64             `json:"timeout_ms,omitempty"` // forkd's own: time until the code is interrupted; 0: never
}
