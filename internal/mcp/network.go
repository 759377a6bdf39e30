package mcp

import (
	"context"
	"net/http"
	"time"

	"github.com/forkd/forkd/client"
)

func networkTools() []tool {
	return []tool{
		define(
			"port_url",
			"Make a URL that gives anyone access to an HTTP server on a port of a sandbox, until the URL expires.",
			Run,
			openWorld,
			portURL,
			within("port", 1, 65535),
			between("ttl_secs", 0, 30*24*3600, 3600),
		),
		define(
			"network",
			"Show where a sandbox may connect to and which connections were refused. With mode, allow or deny, change the policy; omitted arguments keep their current values.",
			Run,
			destructive|idempotent,
			network,
			among("mode", "none", "public", "allow", "open"),
		),
	}
}

type portArgs struct {
	SandboxID string  `json:"sandbox_id"`
	Port      int     `json:"port"`
	TTLSecs   float64 `json:"ttl_secs,omitempty" jsonschema:"how long the URL is valid"`
}

type portResult struct {
	URL       string `json:"url"`
	ExpiresAt string `json:"expires_at"`
}

func portURL(ctx context.Context, c *call, in portArgs) (portResult, error) {
	u, err := c.PortURL(ctx, in.SandboxID, in.Port, client.PortURLRequest{TTLSecs: in.TTLSecs})
	if p, ok := problemOf(err); ok && p.Status == http.StatusConflict && p.Code == "conflict" {
		err = &client.Error{Status: p.Status, Code: p.Code, Message: p.Detail,
			Fix: "ask the operator for --proxy-domain; until then, use exec_command with curl inside the sandbox, or 'forkd port-forward' on the user's machine"}
	}
	return portResult{u.URL, time.Unix(u.ExpiresAt, 0).UTC().Format(time.RFC3339)}, err
}

type networkArgs struct {
	SandboxID string   `json:"sandbox_id"`
	Mode      string   `json:"mode,omitempty" jsonschema:"none; public: the internet without private networks; allow: only the destinations in allow; open: everything except the host"`
	Allow     []string `json:"allow,omitempty" jsonschema:"rules such as pypi.org, *.pythonhosted.org, 10.1.2.3:5432; they replace the current ones"`
	Deny      []string `json:"deny,omitempty" jsonschema:"rules that take precedence over allow in every mode; they replace the current ones"`
}

type networkResult struct {
	Mode        string                  `json:"mode"`
	Allow       []string                `json:"allow"`
	Deny        []string                `json:"deny"`
	Open        uint32                  `json:"open_connections"`
	Refused     []client.NetworkRefusal `json:"recently_refused" jsonschema:"each with a way to allow it"`
	RefusedByID map[string]uint64       `json:"refused_counts,omitempty" jsonschema:"refused connections, by reason"`
}

func network(ctx context.Context, c *call, in networkArgs) (r networkResult, err error) {
	now, err := c.Network(ctx, in.SandboxID)
	if err != nil {
		return r, err
	}
	if in.Mode != "" || in.Allow != nil || in.Deny != nil {
		want := client.Network{
			Mode:     now.Mode,
			Allow:    now.Allow,
			Deny:     now.Deny,
			AllowECH: now.AllowECH,
			Limits:   now.Limits,
			Secrets:  now.Secrets,
		}
		if in.Mode != "" {
			want.Mode = in.Mode
			if in.Mode != "allow" && in.Allow == nil {
				want.Allow = nil // the present rules were not meant for the new mode
			}
		}
		if in.Allow != nil {
			want.Allow = in.Allow
		}
		if in.Deny != nil {
			want.Deny = in.Deny
		}
		if now, err = c.SetNetwork(ctx, in.SandboxID, want); err != nil {
			return r, err
		}
	}
	r = networkResult{now.Mode, append([]string{}, now.Allow...), append([]string{}, now.Deny...), now.Stats.Open,
		[]client.NetworkRefusal{}, now.Stats.Refused}
	left := room(maxText)
	for _, refusal := range now.Stats.Recent {
		if left.fits(refusal) {
			r.Refused = append(r.Refused, refusal)
		}
	}
	return r, nil
}
