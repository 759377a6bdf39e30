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
	RAM    uint64 // size of the guest's RAM in bytes
	VMM    vm.Stats
	Memory procmem.Memory // only View.Stats and View.RecentStats measure it
	Usage  cgroup.Usage
	Limits vm.Limits
	Since  tally.Written
}

// Stats measures a running sandbox. It omits the memory of the VMM process, because measuring that
// takes milliseconds.
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
	top := s.record.Top
	st.RAM, st.Limits = s.record.MemoryBytes, s.record.Limits
	s.mu.Unlock()
	disk := tally.DiskBytes(filepath.Join(s.data, top))
	st.Since = s.since.Written(tally.Written{Memory: st.VMM.GuestDirtyBytes, Disk: disk})
	if st.Usage, err = v.vmm.Usage(); err != nil {
		return Stats{}, s.explain("measure", v, err)
	}
	return st, nil
}
