package v1

// Network is where a sandbox may connect to, and how much of the host's network it may take. It is
// always given whole: what is left out has its default, not what it was before.
type Network struct {
	// Mode is "none", "public" (the internet without private networks and the host's own
	// addresses), "allow" (only what Allow lists) or "open" (all but loopback, link-local and the
	// host's own addresses). Empty: "allow"; Allow must be given then.
	Mode string `json:"mode,omitempty"`

	// Allow and Deny are rules: a name, *.name, an address or a network, such as "pypi.org",
	// "*.pythonhosted.org", "10.1.2.3:5432", "tcp/10.0.0.0/8:80-90". Deny wins in every mode.
	Allow []string `json:"allow,omitempty"`
	Deny  []string `json:"deny,omitempty"`

	// AllowECH lets TLS with encrypted_client_hello (RFC 9849) through where a rule by name
	// decides. It hides the name of the server, and browsers send it always.
	AllowECH bool `json:"allow_ech,omitempty"`

	Limits NetworkLimits `json:"limits,omitzero"`

	// Secrets are headers that are added outside of the sandbox, which never knows their values.
	// Branches do not inherit them; a build takes none.
	Secrets []NetworkSecret `json:"secrets,omitempty"`
}

// NetworkSecret is a header of requests to one HTTPS server, at port 443. The policy has to let
// them through.
type NetworkSecret struct {
	Host   string `json:"host"`
	Header string `json:"header"` // such as "Authorization"
	// all of it, such as "Bearer …"; empty: the one that the sandbox has for it. Never in an answer
	Value string `json:"value,omitempty"`
}

// NetworkLimits bound what one sandbox takes from the others. 0 means the daemon's default.
type NetworkLimits struct {
	BytesPerSecond   uint64 `json:"bytes_per_second,omitempty"` // of payload, in each direction
	PacketsPerSecond uint32 `json:"packets_per_second,omitempty"`
	Connections      uint32 `json:"connections,omitempty"` // at a time
}

// SandboxNetwork is the network of a sandbox: what it may do, with the fields of Network, and what
// it did since it was started, rolled back or resumed.
type SandboxNetwork struct {
	Mode  string   `json:"mode"`
	Allow []string `json:"allow,omitempty"`
	Deny  []string `json:"deny,omitempty"`

	AllowECH bool `json:"allow_ech,omitempty"`

	Limits NetworkLimits `json:"limits,omitzero"`
	Stats  NetworkStats  `json:"stats"`

	Secrets []NetworkSecret `json:"secrets,omitempty"` // without their values
}

// NetworkStats are counters.
type NetworkStats struct {
	Open        uint32 `json:"open"`        // connections now, UDP included
	Connections uint64 `json:"connections"` // that were let through and have ended
	UpBytes     uint64 `json:"up_bytes"`    // payload of these from the sandbox
	DownBytes   uint64 `json:"down_bytes"`
	DNSQueries  uint64 `json:"dns_queries"`
	// frames that the sandbox had no room for, or that were malformed
	Dropped uint64            `json:"dropped"`
	Refused map[string]uint64 `json:"refused,omitempty"` // connections that were not let through, by reason
	Recent  []NetworkRefusal  `json:"recent,omitempty"`  // the last destinations of these, at most 8, the latest first
}

// NetworkRefusal is a destination that was refused.
type NetworkRefusal struct {
	Protocol string `json:"protocol"`          // "tcp", "udp", "icmp" or "dns"
	Address  string `json:"address,omitempty"` // with its port; empty for "dns"
	Name     string `json:"name,omitempty"`    // of the server, or that DNS was asked for; the sandbox chose it
	Reason   string `json:"reason"`            // a key of Refused
	Why      string `json:"why"`               // the reason in words, such as "private range"
	// how forkd net set lets it through, such as "allow it with --allow 1.2.3.4"; empty if it
	// cannot
	Fix      string `json:"fix,omitempty"`
	Count    uint64 `json:"count"`
	LastUnix int64  `json:"last_unix"` // the last time, in seconds since 1970
}
