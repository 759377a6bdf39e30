package v1

// PortURLRequest asks for a signed URL of a port of a sandbox.
type PortURLRequest struct {
	TTLSecs float64 `json:"ttl_secs,omitempty"` // 0 means an hour
}

// PortURL is a URL that gives anyone who holds it access to a port of a sandbox, until ExpiresAt.
type PortURL struct {
	URL       string `json:"url"`
	ExpiresAt int64  `json:"expires_at"` // seconds since 1970
}
