package ledger

import (
	"time"

	durable "github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/vm"
)

// durable returns the form of r on disk, which has no secrets. If the network setting has no mode,
// it is invalid, and the result has a policy that the encoder refuses.
func (r *Record) durable() *durable.Sandbox {
	network := r.Network.ForSnapshot()
	if r.Network.Policy.Mode == 0 {
		network.Mode = ""
	}
	return &durable.Sandbox{
		ID: r.ID, SnapshotTag: r.SnapshotTag, SnapshotID: r.SnapshotID, Origin: r.Origin, Hostname: r.Hostname,
		Owner: r.Owner, PID: r.PID, Protocol: r.Protocol, Created: r.Created, Expires: r.Expires,
		MemoryBytes: r.MemoryBytes, Fork: r.Fork, Network: *network, Limits: durable.Limits(r.Limits),
		Hooks: r.Hooks, Env: r.Env, Labels: r.Labels, Annotation: r.Annotation, IdleTimeoutNS: int64(r.IdleTimeout),
		ExpirySuspends: r.ExpirySuspends, AutoResume: r.AutoResume, Strict: r.Strict, Unique: durableUnique(r.Unique),
		Top: r.Top, Tops: r.Tops, Frozen: r.Frozen, Count: r.Count, Suspends: r.Suspends,
		Volumes: r.Volumes, At: r.At,
		Rebased: r.Rebased, Rebasing: r.Rebasing, Pending: r.Pending, Paused: r.Paused, Restoring: r.Restoring,
		RestoringTo: r.RestoringTo,
	}
}

// fromDurable converts d, which was read from the file at path, to a Record.
func fromDurable(path string, d *durable.Sandbox) (Record, error) {
	network, err := netclient.FromText(&d.Network)
	if err != nil {
		return Record{}, &durable.Error{Path: path, Field: "network", Reason: err.Error()}
	}
	limits := vm.Limits(d.Limits)
	if err := limits.Check(); err != nil {
		return Record{}, &durable.Error{Path: path, Field: "limits", Reason: err.Error()}
	}
	return Record{
		ID: d.ID, SnapshotTag: d.SnapshotTag, SnapshotID: d.SnapshotID, Origin: d.Origin, Hostname: d.Hostname,
		Owner: d.Owner, PID: d.PID, Protocol: d.Protocol, Created: d.Created, Expires: d.Expires,
		MemoryBytes: d.MemoryBytes, Fork: d.Fork, Network: network, Limits: limits,
		Hooks: d.Hooks, Env: d.Env, Labels: d.Labels, Annotation: d.Annotation, IdleTimeout: time.Duration(d.IdleTimeoutNS),
		ExpirySuspends: d.ExpirySuspends, AutoResume: d.AutoResume, Strict: d.Strict, Unique: fromUnique(d.Unique),
		Top: d.Top, Tops: d.Tops, Frozen: d.Frozen, Count: d.Count, Suspends: d.Suspends,
		Volumes: d.Volumes, At: d.At,
		Rebased: d.Rebased, Rebasing: d.Rebasing, Pending: d.Pending, Paused: d.Paused, Restoring: d.Restoring,
		RestoringTo: d.RestoringTo,
	}, nil
}

func durableUnique(u *agentproto.Unique) *durable.Unique {
	if u == nil {
		return nil
	}
	list := func(from []agentproto.Generator) (to []durable.Generator) {
		for _, g := range from {
			to = append(to, durable.Generator(g))
		}
		return to
	}
	return &durable.Unique{Reseeded: list(u.Reseeded), Repeats: list(u.Repeats), More: u.More}
}

func fromUnique(u *durable.Unique) *agentproto.Unique {
	if u == nil {
		return nil
	}
	list := func(from []durable.Generator) (to []agentproto.Generator) {
		for _, g := range from {
			to = append(to, agentproto.Generator(g))
		}
		return to
	}
	return &agentproto.Unique{Reseeded: list(u.Reseeded), Repeats: list(u.Repeats), More: u.More}
}
