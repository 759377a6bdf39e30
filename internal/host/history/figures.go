package history

// Sandbox has the figures of a sandbox and its VMM. In a reading, CPU, Read and Written are totals.
// In a point of the history, they are means per second.
type Sandbox struct {
	CPU     float64 // seconds of processor time; in a point: CPUs in use
	Memory  float64 // bytes charged to the sandbox, with page cache
	Own     float64 // the part of Memory that the kernel cannot reclaim
	Read    float64 // bytes read from disks
	Written float64
}

var sandboxKinds = []kind{count, level, level, count, count}

func (s *Sandbox) values() []float64 { return []float64{s.CPU, s.Memory, s.Own, s.Read, s.Written} }

func sandboxOf(v []float32) Sandbox {
	return Sandbox{float64(v[0]), float64(v[1]), float64(v[2]), float64(v[3]), float64(v[4])}
}

// Host has the figures of the host. In a reading, CPU, SandboxCPU, Children and ReadySeconds are
// totals. In a point of the history, they are means per second.
type Host struct {
	CPU        float64 // seconds of processor time of all processes; in a point: CPUs in use
	SandboxCPU float64 // like CPU, but only for sandboxes, pooled VMMs and forkd-net
	Available  float64 // bytes of memory that new processes can use
	Tmpfs      float64 // bytes of memory in files on tmpfs, such as hot snapshots
	Memory     float64 // bytes charged to sandboxes, pooled VMMs and forkd-net, with page cache
	Own        float64 // the part of Memory that the kernel cannot reclaim
	Pool       float64 // number of VMM processes that wait for a fork

	Children     float64 // number of children that became ready
	ReadySeconds float64 // total time that the children in Children took to become ready, in seconds

	Sandboxes float64 // number of sandboxes in any state
	Running   float64
}

var hostKinds = []kind{count, count, level, level, level, level, level, count, count, level, level}

func (h *Host) values() []float64 {
	return []float64{h.CPU, h.SandboxCPU, h.Available, h.Tmpfs, h.Memory, h.Own, h.Pool, h.Children, h.ReadySeconds,
		h.Sandboxes, h.Running}
}

func hostOf(v []float32) Host {
	return Host{float64(v[0]), float64(v[1]), float64(v[2]), float64(v[3]), float64(v[4]), float64(v[5]), float64(v[6]),
		float64(v[7]), float64(v[8]), float64(v[9]), float64(v[10])}
}
