package e2b

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/proto/netproto"
)

func TestNetworkOptions(t *testing.T) {
	yes, no := true, false
	for _, c := range []struct {
		config  string
		offline *bool
		want    string // mode, allowed, denied; or the beginning of the error
	}{
		{`{}`, nil, "public"},
		{`{}`, &no, "public"},
		{`{}`, &yes, "none"},
		{`{"allowOut":["1.1.1.1"]}`, nil, "public"},
		{`{"allowOut":["1.1.1.1","*.example.com"],"denyOut":["0.0.0.0/0"]}`, nil, "allow 1.1.1.1 *.example.com"},
		{`{"allowOut":["1.1.1.1"]}`, &yes, "allow 1.1.1.1"},
		{`{"allowOut":["*.example.com"],"denyOut":["0.0.0.0/0"],"dnsServers":["9.9.9.9","10.0.0.1"]}`, nil,
			"allow *.example.com"},
		{`{"allowOut":["1.1.1.0/24"],"denyOut":["0.0.0.0/0"],"dnsServers":["9.9.9.9"]}`, nil, "allow 1.1.1.0/24"},
		{`{"dnsServers":[]}`, nil, "public"},
		{`{"dnsServers":["dns.test"]}`, nil, "network.dnsServers[0]:"},
		{`{"denyOut":["0.0.0.0/0"]}`, nil, "none"},
		{`{"denyOut":["8.8.8.0/24"]}`, nil, "public -8.8.8.0/24"},
		{`{"allowOut":["8.8.8.8"],"denyOut":["8.8.8.0/24"]}`, nil, "network.denyOut:"},
		{`{"denyOut":["not a rule"]}`, nil, "network: deny[0]:"},
		{`{"rules":{"a.test":[{}]}}`, nil, "network.rules:"},
		{`{"egressProxy":{"address":"a:1"}}`, nil, "network.egressProxy:"},
		{`{"rules":{},"egressProxy":null}`, nil, "public"},
		{`{"maskRequestHost":"a"}`, nil, "network.maskRequestHost:"},
		{`{"httpsPorts":[8443]}`, nil, "network.httpsPorts:"},
	} {
		var config networkConfig
		if err := json.Unmarshal([]byte(c.config), &config); err != nil {
			t.Fatal(err)
		}
		setting, err := config.setting(c.offline)
		if err != nil {
			if !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("%s: %v, want %s", c.config, err, c.want)
			}
			continue
		}
		p := setting.Policy
		got := append([]string{p.Mode.String()}, netproto.Texts(p.Allow)...)
		for _, rule := range netproto.Texts(p.Deny) {
			got = append(got, "-"+rule)
		}
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%s: %s, want %s", c.config, text, c.want)
		}
	}
}

// A field that forkd does not know could restrict a network further, so such a field is refused, both in the
// network's configuration and next to it. Unknown fields elsewhere are ignored, because newer SDKs send them.
func TestUnknownFieldsOfNetworks(t *testing.T) {
	for body, v := range map[string]any{
		`{"templateID":"t","network":{"allowOut":["a.test"],"allowPorts":[443]}}`: &createRequest{},
		`{"allowOut":["a.test"],"allowPorts":[443]}`:                              &networkRequest{},
		`{"templateID":"t","allowPorts":[443]}`:                                   &createRequest{},
	} {
		if err := json.Unmarshal([]byte(body), v); err == nil || !strings.Contains(err.Error(), "allowPorts") {
			t.Errorf("%s: %v", body, err)
		}
	}
	for _, name := range []string{"egressPolicy", "firewall", "Secrets", "denyList", "network2", "awsCredentials"} {
		if err := json.Unmarshal([]byte(`{"templateID":"t","`+name+`":{}}`), &createRequest{}); err == nil ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for body, v := range map[string]any{
		// This request has all fields that the SDKs send.
		`{"templateID":"t","timeout":1,"autoPause":true,"autoPauseMemory":true,"autoResume":{"enabled":true},"secure":true,` +
			`"allow_internet_access":true,"network":{},"metadata":{"a":"b"},"envVars":{"SECRET":"x"},"mcp":{},"iam":null,` +
			`"volumeMounts":[],"firewall":null}`: &createRequest{},
		`{"templateID":"t","newer":1,"network":{"allowOut":["a.test"]}}`: &createRequest{},
		`{"templateID":"t","network":null}`:                              &createRequest{},
		`{"allow_internet_access":false,"denyOut":["8.8.8.8"]}`:          &networkRequest{},
	} {
		if err := json.Unmarshal([]byte(body), v); err != nil {
			t.Errorf("%s: %v", body, err)
		}
	}
}
