package v1

// Hold holds back the requests of a sandbox that could change something at a server.
type Hold struct {
	// Hosts are at most 64 names such as "api.example.com", or "*.example.com" for all names below it.
	// Requests to ports 80 and 443 of these hosts are held, and their other ports are refused.
	Hosts []string `json:"hosts"`
	// Answer is the answer to a held request: "refuse" (status 403; the default), "record" (status
	// 202, although nothing was sent) or "wait" (no answer until the hold ends or 15 minutes have
	// passed).
	Answer string `json:"answer,omitempty"`
}

// Effects are the requests of a sandbox that were held since it was started, rolled back or resumed.
type Effects struct {
	Hold   *Hold    `json:"hold,omitempty"`   // nil: no requests are held
	Since  int64    `json:"since,omitempty"`  // when the list began, in seconds since 1970; 0: there was no traffic yet
	Missed uint64   `json:"missed,omitempty"` // requests for which the list had no room; they were refused
	List   []Effect `json:"effects"`          // oldest first
}

// Effect is a request that was held. All text in it was chosen by the sandbox.
type Effect struct {
	ID         uint64   `json:"id"`
	Unix       int64    `json:"unix"` // seconds since 1970
	Method     string   `json:"method"`
	URL        string   `json:"url"`
	Headers    []string `json:"headers,omitempty"`     // "Name: value"; values of credentials are hidden
	Body       string   `json:"body,omitempty"`        // beginning of the body, if it is UTF-8
	BodyBase64 string   `json:"body_base64,omitempty"` // beginning of any other body
	Truncated  bool     `json:"truncated,omitempty"`   // the request is longer than these fields show
	// Outcome is "refused", "recorded", "waiting", "sent" (after the hold had ended), "given_up" (the
	// sandbox closed the connection) or "expired" (it has waited for 15 minutes).
	Outcome string `json:"outcome"`
}
