package agentproto

// Applied is the answer to the request POST /apply at EnvdPort. The body of the request is the
// archive of a merge (see package diffproto). The route is an extension by forkd. An agent that
// lacks the route answers with 404.
type Applied struct {
	Files int `json:"files"` // number of changes that took place: all of them, or 0 after an error
	// Changed lists files that have changed since the comparison. If it is not empty, nothing was
	// applied. The list may be incomplete.
	Changed []string `json:"changed,omitempty"`
	// Incomplete is set if an error has interrupted the changes and some of them could not be
	// undone.
	Incomplete bool   `json:"incomplete,omitempty"`
	Error      string `json:"error,omitempty"` // empty: all changes took place
}
