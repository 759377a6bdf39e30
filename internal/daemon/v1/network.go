package v1

import (
	"errors"
	"fmt"
	"net/http"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// settingOf returns the network setting in a request, or nil if the request has none. The mode is
// required, because a default could allow connections that the policy of the snapshot or the
// sandbox denies. In errors, the names of fields have the given prefix.
func settingOf(prefix string, n *apiv1.Network) (*netclient.Setting, error) {
	if n == nil {
		return nil, nil
	}
	if n.Mode == "" && len(n.Allow) == 0 {
		return nil, &invalid.Error{Field: prefix + "mode", Reason: "missing: want none, public, allow or open"}
	}
	policy, err := netproto.ParsePolicy(n.Mode, n.Allow, n.Deny)
	limits := netproto.Limits(n.Limits)
	if err == nil {
		err = limits.Check()
	}
	var field *netproto.FieldError
	if errors.As(err, &field) {
		return nil, &invalid.Error{Field: prefix + field.Field, Reason: field.Reason}
	}
	if err != nil {
		return nil, err
	}
	policy.AllowECH = n.AllowECH
	secrets, err := secretsOf(prefix, n.Secrets)
	return &netclient.Setting{Policy: policy, Limits: limits, Secrets: secrets}, err
}

func secretsOf(prefix string, list []apiv1.NetworkSecret) (secrets []netproto.Secret, err error) {
	for i, s := range list {
		secret, err := netproto.ParseSecret(s.Host, s.Header, s.Value)
		var field *netproto.FieldError
		if errors.As(err, &field) {
			return nil, &invalid.Error{Field: fmt.Sprintf("%ssecrets[%d].%s", prefix, i, field.Field), Reason: field.Reason}
		}
		secrets = append(secrets, secret)
	}
	err = netproto.CheckSecrets(secrets)
	var field *netproto.FieldError
	if errors.As(err, &field) {
		return nil, &invalid.Error{Field: prefix + field.Field, Reason: field.Reason}
	}
	return secrets, err
}

func networkOf(s netclient.Setting, stats netproto.Stats) apiv1.SandboxNetwork {
	n := apiv1.SandboxNetwork{
		Mode: s.Policy.Mode.String(), Allow: netproto.Texts(s.Policy.Allow), Deny: netproto.Texts(s.Policy.Deny),
		AllowECH: s.Policy.AllowECH, Limits: apiv1.NetworkLimits(s.Limits),
		Stats: apiv1.NetworkStats{Open: stats.Open, Connections: stats.Connections, UpBytes: stats.UpBytes,
			DownBytes: stats.DownBytes, DNSQueries: stats.DNSQueries, Dropped: stats.Dropped},
	}
	n.HoldEffects = holdFor(&s.Hold)
	for _, secret := range s.Secrets {
		n.Secrets = append(n.Secrets, apiv1.NetworkSecret{Host: secret.Host, Header: secret.Header})
	}
	for _, r := range stats.Refused {
		if n.Stats.Refused == nil {
			n.Stats.Refused = make(map[string]uint64)
		}
		n.Stats.Refused[r.Reason] += r.Count
	}
	for _, r := range stats.Recent {
		n.Stats.Recent = append(n.Stats.Recent, apiv1.NetworkRefusal{Protocol: r.Protocol, Address: r.Address, Name: r.Name,
			Reason: r.Reason, Why: r.Why, Fix: r.Fix, Count: r.Count, LastUnix: r.Unix})
	}
	for _, p := range stats.Passed {
		n.Stats.RecentAllowed = append(n.Stats.RecentAllowed, apiv1.NetworkAllowed{Protocol: p.Protocol, Address: p.Address,
			Name: p.Name, UpBytes: p.UpBytes, DownBytes: p.DownBytes, Count: p.Count, LastUnix: p.Unix})
	}
	for _, f := range stats.Flows {
		n.Stats.OpenConnections = append(n.Stats.OpenConnections, apiv1.NetworkConnection{Protocol: f.Protocol,
			Address: f.Address, Name: f.Name, UpBytes: f.UpBytes, DownBytes: f.DownBytes, BeganUnix: f.Began,
			LastUnix: f.Last})
	}
	return n
}

func (a *api) getNetwork(r *http.Request) (out apiv1.SandboxNetwork, err error) {
	i, err := a.view(r).Sandbox(r.PathValue("id"))
	if err != nil {
		return out, err
	}
	stats, err := a.view(r).NetworkStats(r.Context(), r.PathValue("id"))
	if err != nil {
		return out, err
	}
	return networkOf(i.Network, stats), nil
}

func (a *api) setNetwork(r *http.Request, req *apiv1.Network) (out apiv1.SandboxNetwork, err error) {
	setting, err := settingOf("", req)
	if err != nil {
		return out, err
	}
	info, err := a.view(r).SetNetwork(r.Context(), r.PathValue("id"), *setting)
	if err != nil {
		return out, err
	}
	stats, err := a.view(r).NetworkStats(r.Context(), info.ID)
	if err != nil {
		return out, err
	}
	return networkOf(info.Network, stats), nil
}
