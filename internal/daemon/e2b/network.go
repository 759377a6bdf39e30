package e2b

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"slices"

	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// networkConfig is E2B's form of a network policy: the addresses that a sandbox may connect to, and
// the clients that may connect to the sandbox.
type networkConfig struct {
	AllowOut   []string        `json:"allowOut,omitempty"`
	DenyOut    []string        `json:"denyOut,omitempty"`
	Public     *bool           `json:"allowPublicTraffic,omitempty"`
	Rules      json.RawMessage `json:"rules,omitempty"`
	Proxy      json.RawMessage `json:"egressProxy,omitempty"`
	MaskHost   string          `json:"maskRequestHost,omitempty"`
	HTTPSPorts []int           `json:"httpsPorts,omitempty"`
	// Addresses of DNS servers. They are checked and then ignored, because they permit no
	// connection.
	DNS []string `json:"dnsServers,omitempty"`
}

// strictConfig is a networkConfig in a request. Unlike other parts of requests, it must not have
// unknown fields, because a newer field could restrict the network more than forkd would.
type strictConfig struct{ networkConfig }

// UnmarshalJSON implements json.Unmarshaler.
func (c *strictConfig) UnmarshalJSON(p []byte) error { return strictly(p, "network", &c.networkConfig) }

// strictly(p, field, v) decodes one JSON value, and refuses unknown fields. An error begins with
// the name of the field.
func strictly(p []byte, field string, v any) error {
	d := json.NewDecoder(bytes.NewReader(p))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%s: %w", field, err)
	}
	return nil
}

// everything is E2B's list that matches all addresses.
var everything = []string{"0.0.0.0/0", "::/0"}

// setting converts a configuration to a policy. If an address is in both lists, E2B allows it and
// forkd would deny it. So both lists together are accepted only if the denied list has all
// addresses, or if the sandbox has no access to the internet. Such a configuration becomes mode
// allow without denied addresses, so only the allowed addresses can be reached.
//
// A configuration without addresses becomes mode public.
func (c *networkConfig) setting(offline *bool) (*netclient.Setting, error) {
	switch {
	case present(c.Rules) && string(c.Rules) != "{}":
		return nil, unsupported("network.rules", "give the sandbox a secret, which is a header too (docs/network.md)")
	case present(c.Proxy):
		return nil, unsupported("network.egressProxy", "start the daemon with --upstream-proxy")
	case c.MaskHost != "":
		return nil, unsupported("network.maskRequestHost", "the server in the sandbox sees the host of the request")
	case len(c.HTTPSPorts) > 0:
		return nil, unsupported("network.httpsPorts", "servers in a sandbox speak HTTP, and the daemon TLS")
	}
	for n, server := range c.DNS {
		if ip, err := netip.ParseAddr(server); err != nil || !ip.Is4() || n >= maxDNS {
			return nil, face.BadRequest("network.dnsServers[%d]: %q: want at most %d IPv4 addresses", n, server, maxDNS)
		}
	}
	closed := offline != nil && *offline
	deny := slices.DeleteFunc(slices.Clone(c.DenyOut), func(rule string) bool {
		all := slices.Contains(everything, rule)
		closed = closed || all
		return all
	})
	mode, allow := netproto.ModePublic, c.AllowOut
	switch {
	case closed && len(allow) == 0:
		mode = netproto.ModeNone
	case closed:
		mode, deny = netproto.ModeAllow, nil
	case len(allow) > 0 && len(deny) > 0:
		return nil, face.BadRequest("network.denyOut: forkd denies what is both allowed and denied, E2B allows it: deny %q to reach nothing but what is allowed, or omit allowOut",
			everything[0])
	default:
		allow = nil // without a list the internet is open; private networks stay closed, as in E2B
	}
	policy, err := netproto.ParsePolicy(mode.String(), allow, deny)
	if err != nil {
		return nil, face.BadRequest("network: %v", err)
	}
	return &netclient.Setting{Policy: policy}, nil
}

// maxDNS is the maximum number of DNS servers that E2B accepts.
const maxDNS = 10

// configOf returns E2B's form of a policy. A rule that E2B lacks is shown in forkd's form.
func configOf(p netproto.Policy) networkConfig {
	c := networkConfig{AllowOut: netproto.Texts(p.Allow), DenyOut: netproto.Texts(p.Deny)}
	if p.Mode == netproto.ModeNone || p.Mode == netproto.ModeAllow {
		c.DenyOut = append(c.DenyOut, everything[0])
	}
	return c
}

// settingFor returns the network of a new sandbox that is forked from the snapshot with the given
// tag. If the client does not say which addresses the sandbox may connect to, settingFor returns
// nil, and the sandbox has the snapshot's network. This network may deny more than E2B's default
// does. The sandbox always has the snapshot's limits, because E2B's form has none.
func (a *Server) settingFor(r *http.Request, tag string, c *networkConfig, offline *bool) (*netclient.Setting, error) {
	asked, err := c.setting(offline)
	if err != nil || offline == nil && len(c.AllowOut) == 0 && len(c.DenyOut) == 0 {
		return nil, err
	}
	d, err := a.view(r).Snapshot(tag)
	if err != nil {
		return nil, err
	}
	before, err := netclient.FromSnapshot(d.Guest.Network)
	if err != nil {
		return nil, err
	}
	asked.Limits = before.Limits
	return asked, nil
}

// networkRequest is the body of setNetwork. Like a strictConfig, it must not have unknown fields.
type networkRequest struct{ networkFields }

type networkFields struct {
	networkConfig
	AllowInternet *bool `json:"allow_internet_access"`
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *networkRequest) UnmarshalJSON(p []byte) error {
	return strictly(p, "network", &r.networkFields)
}

// setNetwork replaces the policy of a sandbox. It keeps the sandbox's present limits and secrets.
// Access to the sandbox's ports is fixed when the sandbox is created.
func (a *Server) setNetwork(w http.ResponseWriter, r *http.Request) error {
	var req networkRequest
	if err := readJSON(w, r, &req); err != nil {
		return err
	}
	i, err := a.find(r)
	if err != nil {
		return err
	}
	var offline *bool
	if req.AllowInternet != nil {
		not := !*req.AllowInternet
		offline = &not
	}
	asked, err := req.setting(offline)
	if err != nil {
		return err
	}
	if n, _ := annotationOf(i); req.Public != nil && *req.Public == n.Private {
		return unsupported("allowPublicTraffic", "it holds for the life of a sandbox: create one with it")
	}
	err = a.view(r).With(r.Context(), i.ID, func(h *sandbox.Held) error {
		setting := h.Info().Network
		setting.Policy = asked.Policy
		return h.SetNetwork(r.Context(), setting)
	})
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
