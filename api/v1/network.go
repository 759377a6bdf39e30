package v1

// Network is the network policy of a sandbox: the destinations to which it may connect, and how
// much of the host's network it may use. A request replaces the whole policy. An omitted field has
// its default, and not its previous value.
type Network struct {
	// Mode is "none", "public" (the internet without private networks and the host's own
	// addresses), "allow" (only the destinations in Allow) or "open" (everything except loopback,
	// link-local and the host's own addresses). Empty means "allow", and then Allow must be set.
	Mode string `json:"mode,omitempty"`

	// Allow and Deny are rules: a name, *.name, an address or a network, such as "pypi.org",
	// "*.pythonhosted.org", "10.1.2.3:5432", "tcp/10.0.0.0/8:80-90". Deny wins in every mode.
	Allow []string `json:"allow,omitempty"`
	Deny  []string `json:"deny,omitempty"`

	// AllowECH lets TLS connections with encrypted_client_hello (RFC 9849) pass even if a rule with
	// a name decides about them. This extension hides the name of the server, and browsers always
	// send this extension.
	AllowECH bool `json:"allow_ech,omitempty"`

	Limits NetworkLimits `json:"limits,omitzero"`

	// Secrets are headers that are added outside the sandbox, so that the sandbox never learns
	// their values. Branches do not inherit them, and builds do not accept them.
	Secrets []NetworkSecret `json:"secrets,omitempty"`
}

// NetworkSecret is a header added to requests to one HTTPS server, at port 443. The policy must
// allow these requests.
type NetworkSecret struct {
	Host   string `json:"host"`
	Header string `json:"header"` // such as "Authorization"
	// Full value of the header, such as "Bearer …". Empty: keep the present value. Never returned.
	Value string `json:"value,omitempty"`
}

// NetworkLimits bounds a sandbox's use of the shared network. 0 means the daemon's default.
type NetworkLimits struct {
	BytesPerSecond   uint64 `json:"bytes_per_second,omitempty"` // bytes of payload, in each direction
	PacketsPerSecond uint32 `json:"packets_per_second,omitempty"`
	Connections      uint32 `json:"connections,omitempty"` // concurrent connections
}

// SandboxNetwork is the network of a sandbox: its policy, with the fields of Network, and its
// traffic since it was started, rolled back or resumed.
type SandboxNetwork struct {
	Mode  string   `json:"mode"`
	Allow []string `json:"allow,omitempty"`
	Deny  []string `json:"deny,omitempty"`

	AllowECH bool `json:"allow_ech,omitempty"`

	Limits NetworkLimits `json:"limits,omitzero"`
	Stats  NetworkStats  `json:"stats"`

	Secrets []NetworkSecret `json:"secrets,omitempty"` // without their values

	HoldEffects *Hold `json:"hold_effects,omitempty"` // requests that are held; a new policy does not change this
}

// NetworkStats are counters.
type NetworkStats struct {
	Open        uint32 `json:"open"`        // open connections, including UDP flows
	Connections uint64 `json:"connections"` // allowed connections that have ended
	UpBytes     uint64 `json:"up_bytes"`    // payload of ended connections, sent by the sandbox
	DownBytes   uint64 `json:"down_bytes"`
	DNSQueries  uint64 `json:"dns_queries"`
	// Frames that were malformed, or for which the sandbox had no room.
	Dropped uint64            `json:"dropped"`
	Refused map[string]uint64 `json:"refused,omitempty"` // refused connections, by reason
	Recent  []NetworkRefusal  `json:"recent,omitempty"`  // most recently refused destinations, at most 8, newest first
	// Most recent destinations of allowed connections that have ended, at most 8, newest first.
	RecentAllowed []NetworkAllowed `json:"recent_allowed,omitempty"`
	// Allowed connections that are open, at most 32, most recently active first.
	OpenConnections []NetworkConnection `json:"open_connections,omitempty"`
}

// NetworkConnection is an allowed connection that is open.
type NetworkConnection struct {
	Protocol  string `json:"protocol"` // "tcp", "udp" or "icmp"
	Address   string `json:"address"`  // includes the port, except for "icmp"
	Name      string `json:"name,omitempty"`
	UpBytes   uint64 `json:"up_bytes"` // payload that the sandbox has sent so far
	DownBytes uint64 `json:"down_bytes"`
	BeganUnix int64  `json:"began_unix"` // in seconds since 1970
	LastUnix  int64  `json:"last_unix"`  // time of the latest data, in seconds since 1970
}

// NetworkAllowed is a destination of allowed connections.
type NetworkAllowed struct {
	Protocol  string `json:"protocol"` // "tcp", "udp" or "icmp"
	Address   string `json:"address"`  // includes the port, except for "icmp"
	Name      string `json:"name,omitempty"`
	UpBytes   uint64 `json:"up_bytes"` // payload of the ended connections, sent by the sandbox
	DownBytes uint64 `json:"down_bytes"`
	Count     uint64 `json:"count"`     // ended connections
	LastUnix  int64  `json:"last_unix"` // when the last connection ended, in seconds since 1970
}

// NetworkRefusal is a refused destination.
type NetworkRefusal struct {
	Protocol string `json:"protocol"`          // "tcp", "udp", "icmp" or "dns"
	Address  string `json:"address,omitempty"` // includes the port; empty for "dns"
	Name     string `json:"name,omitempty"`    // name of the server, or name in the DNS query; chosen by the sandbox
	Reason   string `json:"reason"`            // a key of Refused
	Why      string `json:"why"`               // the reason in words, such as "private range"
	// Option of the command 'forkd net set' that permits the destination, such as "allow it with
	// --allow 1.2.3.4". Empty if no option permits it.
	Fix      string `json:"fix,omitempty"`
	Count    uint64 `json:"count"`
	LastUnix int64  `json:"last_unix"` // last occurrence, in seconds since 1970
}
