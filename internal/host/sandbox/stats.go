package sandbox

import (
	"context"
	"path/filepath"

	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/host/procmem"
	"github.com/forkd/forkd/internal/host/tally"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Stats holds what a sandbox costs the host.
type Stats struct {
	PID    int
	VMM    vm.Stats
	Memory procmem.Memory
	Usage  cgroup.Usage
	Limits vm.Limits
	Since  tally.Written
}

// Stats measures a running sandbox.
func (m *Manager) Stats(ctx context.Context, id string) (Stats, error) {
	s, err := m.Get(id)
	if err != nil {
		return Stats{}, err
	}
	v, _, err := s.running("measure")
	if err != nil {
		return Stats{}, err
	}
	st := Stats{PID: v.vmm.PID()}
	if st.VMM, err = v.vmm.Stats(ctx); s.answered(err) != nil {
		return Stats{}, s.explain("measure", v, err)
	}
	s.mu.Lock()
	ram, top := s.record.MemoryBytes, s.record.Top
	st.Limits = s.record.Limits
	s.mu.Unlock()
	disk := tally.DiskBytes(filepath.Join(s.data, top))
	st.Since = s.since.Written(tally.Written{Memory: st.VMM.GuestDirtyBytes, Disk: disk})
	if st.Usage, err = v.vmm.Usage(); err != nil {
		return Stats{}, s.explain("measure", v, err)
	}
	st.Memory, err = procmem.Of(st.PID, ram)
	return st, err
}
