package placement

import apiv1 "github.com/forkd/forkd/api/v1"

// Estimates for what a daemon does not say. The daemon of a node measures the real values, and
// refuses sandboxes for which the node has no room.
const (
	AssumedMiB  = 64   // memory of a sandbox that the node has not measured yet
	assumedRate = 1000 // MiB per second at which a node reads a snapshot from its disk
)

// Observed turns what a node's daemon says about itself into a Node. It also returns the size of
// each snapshot, in MiB. The node is Cordoned if the argument says so, or if its daemon has no KVM.
func Observed(name string, cordoned bool, v *apiv1.Version, host *apiv1.HostMetrics, snapshots []apiv1.Snapshot) (Node,
	map[string]uint64) {
	p := Node{Name: name, ReadRate: assumedRate, Has: make(map[string]Heat),
		Capacity: Resources{Sandboxes: uint64(max(v.Admission.MaxSandboxes, 0)),
			VCPUs: uint64(max(v.Admission.VCPUOvercommit, 0) * float64(host.CPUs))}}
	if v.HostMemoryMiB > v.Admission.MemoryReserveMiB {
		p.Capacity.MemoryMiB = v.HostMemoryMiB - v.Admission.MemoryReserveMiB
	}
	if cordoned || v.NoKVM != "" {
		p.State = Cordoned
	}
	sizes := make(map[string]uint64)
	for _, s := range snapshots {
		p.Used.Sandboxes += uint64(max(s.Sandboxes, 0))
		p.Used.VCPUs += uint64(max(s.Sandboxes, 0)) * uint64(s.VCPUs)
		if s.Status != "ready" || s.Warning != "" {
			continue
		}
		// Files of a snapshot with running sandboxes are in memory. The API does not say whether
		// other snapshots are in memory.
		p.Has[s.Tag], sizes[s.Tag] = Cold, s.MemSizeMiB
		if s.Sandboxes > 0 {
			p.Has[s.Tag] = Hot
		}
	}
	p.Used.MemoryMiB = p.Used.Sandboxes * AssumedMiB
	if k := len(host.Points); k > 0 && host.MemoryBytes > host.Points[k-1].AvailableBytes {
		p.Used.MemoryMiB = (host.MemoryBytes - host.Points[k-1].AvailableBytes) >> 20
	}
	return p, sizes
}
