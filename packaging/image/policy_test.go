package main

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"os"
	"slices"
	"testing"

	"gopkg.in/yaml.v3"
)

// labelSelector is the part of Kubernetes' selectors that the manifests use.
type labelSelector struct {
	MatchLabels map[string]string `yaml:"matchLabels"`
}

func (s *labelSelector) matches(labels map[string]string) bool {
	for key, value := range s.MatchLabels {
		if labels[key] != value {
			return false
		}
	}
	return true
}

// rule is a rule of a NetworkPolicy.
type rule struct {
	From, To []struct {
		Pods       *labelSelector `yaml:"podSelector"`
		Namespaces *labelSelector `yaml:"namespaceSelector"`
		Block      *struct {
			CIDR   string
			Except []string
		} `yaml:"ipBlock"`
	}
	Ports []struct {
		Port     any
		Protocol string
	}
}

// networkPolicy is a NetworkPolicy. If it has other fields, it cannot be decoded.
type networkPolicy struct {
	API      string `yaml:"apiVersion"`
	Kind     string
	Metadata struct{ Name, Namespace string }
	Spec     struct {
		Pods            labelSelector `yaml:"podSelector"`
		Types           []string      `yaml:"policyTypes"`
		Ingress, Egress []rule
	}
}

// networkPolicies returns the policies of the manifests.
func networkPolicies(t *testing.T) (list []networkPolicy) {
	t.Helper()
	for _, name := range []string{"forkd.yaml", "cluster/operator.yaml", "cluster/router.yaml"} {
		text, err := os.ReadFile("../kubernetes/" + name)
		if err != nil {
			t.Fatal(err)
		}
		for _, doc := range bytes.Split(text, []byte("\n---\n")) {
			if !bytes.Contains(doc, []byte("\nkind: NetworkPolicy\n")) {
				continue
			}
			decoder := yaml.NewDecoder(bytes.NewReader(doc))
			decoder.KnownFields(true)
			var p networkPolicy
			if err := decoder.Decode(&p); err != nil && !errors.Is(err, io.EOF) {
				t.Fatalf("%s: %v", name, err)
			}
			list = append(list, p)
		}
	}
	return list
}

// peer is one end of a connection: a pod or, with an address, a host outside the cluster.
type peer struct {
	namespace            string
	pod, namespaceLabels map[string]string
	ports                map[string]int // by name
	address              string
}

func app(name string, ports map[string]int) peer {
	return peer{namespace: "forkd", pod: map[string]string{"app.kubernetes.io/name": name}, ports: ports,
		namespaceLabels: map[string]string{"kubernetes.io/metadata.name": "forkd"}}
}

// admits reports whether rules of a policy in a namespace let a pod connect to, or be connected by,
// the other peer at a port of the destination.
func admits(rules []rule, namespace string, other, destination peer, port int, protocol string) bool {
	return slices.ContainsFunc(rules, func(r rule) bool {
		allowed := len(r.Ports) == 0
		for _, p := range r.Ports {
			number, _ := p.Port.(int)
			if name, named := p.Port.(string); named {
				number = destination.ports[name]
			}
			allowed = allowed || number == port && p.Protocol == protocol
		}
		if !allowed {
			return false
		}
		peers := append(slices.Clone(r.From), r.To...)
		for _, p := range peers {
			switch {
			case p.Block != nil && other.address != "":
				address := netip.MustParseAddr(other.address)
				within := func(cidr string) bool { return netip.MustParsePrefix(cidr).Contains(address) }
				if within(p.Block.CIDR) && !slices.ContainsFunc(p.Block.Except, within) {
					return true
				}
			case p.Block != nil || other.address != "":
			case p.Namespaces == nil && other.namespace != namespace:
			case p.Namespaces != nil && !p.Namespaces.matches(other.namespaceLabels):
			case p.Pods == nil || p.Pods.matches(other.pod):
				return true
			}
		}
		return len(peers) == 0
	})
}

// isAllowed reports whether the policies allow a connection.
func isAllowed(policies []networkPolicy, from, to peer, port int, protocol string) bool {
	for _, side := range []struct {
		kind       string
		own, other peer
		rules      func(p networkPolicy) []rule
	}{
		{"Egress", from, to, func(p networkPolicy) []rule { return p.Spec.Egress }},
		{"Ingress", to, from, func(p networkPolicy) []rule { return p.Spec.Ingress }},
	} {
		selected, admitted := false, false
		for _, p := range policies {
			if side.own.address == "" && p.Metadata.Namespace == side.own.namespace && p.Spec.Pods.matches(side.own.pod) &&
				slices.Contains(p.Spec.Types, side.kind) {
				selected = true
				admitted = admitted || admits(side.rules(p), p.Metadata.Namespace, side.other, to, port, protocol)
			}
		}
		if selected && !admitted {
			return false
		}
	}
	return true
}

// The network policies allow exactly the connections that the parts of a cluster need.
func TestNetworkPolicies(t *testing.T) {
	policies := networkPolicies(t)
	if len(policies) != 4 {
		t.Fatalf("found %d policies", len(policies))
	}
	daemon, router := app("forkd", map[string]int{"http": 8889}), app("forkd-router", map[string]int{"http": 8889})
	operator, stranger := app("forkd-operator", map[string]int{"health": 8081}), app("stranger", nil)
	client := peer{namespace: "team", pod: map[string]string{"forkd-client": "true"},
		namespaceLabels: map[string]string{"forkd-client": "true"}}
	halfClient := peer{namespace: "other", pod: client.pod}
	otherDaemon := peer{namespace: "other", pod: daemon.pod, ports: daemon.ports} // not of this installation
	monitoring := peer{namespace: "monitoring",
		namespaceLabels: map[string]string{"kubernetes.io/metadata.name": "monitoring"}}
	dns := peer{namespace: "kube-system", pod: map[string]string{"k8s-app": "kube-dns"},
		namespaceLabels: map[string]string{"kubernetes.io/metadata.name": "kube-system"}}
	host := func(address string) peer { return peer{address: address} }
	for _, c := range []struct {
		what     string
		from, to peer
		port     int
		want     bool
	}{
		{"a client uses a daemon", client, daemon, 8889, true},
		{"a client uses a router", client, router, 8889, true},
		{"a client uses another port of a daemon", client, daemon, 22, false},
		{"a client asks the operator", client, operator, 8081, false},
		{"a pod with a client's label in another namespace uses a daemon", halfClient, daemon, 8889, false},
		{"a pod with a client's label in another namespace uses a router", halfClient, router, 8889, false},
		{"a pod of forkd's namespace uses a daemon", stranger, daemon, 8889, false},
		{"a pod of forkd's namespace uses a router", stranger, router, 8889, false},
		{"a router passes a request on", router, daemon, 8889, true},
		{"a router uses another port of a daemon", router, daemon, 22, false},
		{"a router connects to the internet", router, host("1.1.1.1"), 443, false},
		{"a router connects to the operator", router, operator, 8081, false},
		{"the operator asks a daemon", operator, daemon, 8889, true},
		{"the operator asks the API server", operator, host("10.96.0.1"), 443, true},
		{"the operator uses another port of the API server's host", operator, host("10.96.0.1"), 22, false},
		{"the operator uses a router", operator, router, 8889, false},
		{"the operator asks DNS", operator, dns, 53, true},
		{"a daemon fetches from another daemon", daemon, daemon, 8889, true},
		{"a sandbox uses another port of another daemon", daemon, daemon, 22, false},
		{"a daemon fetches from a daemon of another namespace", daemon, otherDaemon, 8889, false},
		{"a daemon of another namespace fetches from a daemon", otherDaemon, daemon, 8889, false},
		{"a sandbox uses a router", daemon, router, 8889, false},
		{"a sandbox connects to the operator", daemon, operator, 8081, false},
		{"a sandbox connects to a client", daemon, client, 80, false},
		{"a daemon asks DNS", daemon, dns, 53, true},
		{"a sandbox uses another port of DNS", daemon, dns, 8080, false},
		{"a sandbox connects to the internet", daemon, host("1.1.1.1"), 443, true},
		{"a sandbox connects to a node", daemon, host("10.0.0.1"), 10250, false},
		{"a sandbox asks the cloud for credentials", daemon, host("169.254.169.254"), 80, false},
		{"a sandbox connects to the internet by IPv6", daemon, host("2606:4700::1111"), 443, true},
		{"a sandbox connects to a node by IPv6", daemon, host("fd00::1"), 10250, false},
		{"Prometheus reads a daemon's metrics by default", monitoring, daemon, 8889, false},
		{"Prometheus reads a router's metrics by default", monitoring, router, 9090, false},
	} {
		if got := isAllowed(policies, c.from, c.to, c.port, "TCP"); got != c.want {
			t.Errorf("%s: allowed %v, want %v", c.what, got, c.want)
		}
	}
}
