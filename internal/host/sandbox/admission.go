package sandbox

import (
	"errors"

	"github.com/forkd/forkd/internal/host/admit"
)

// reserve takes room for n more sandboxes of an owner, and counts what it refuses.
func (m *Manager) reserve(o owner, n int) (release func(), err error) {
	release, err = m.owners.Reserve(o.name, o.most, n, func() (have int) {
		for _, i := range m.List() {
			if i.Owner == o.name && (i.State != Exited || i.Resumable) {
				have++
			}
		}
		return have
	})
	if err != nil {
		m.cfg.Observer.Refused(admit.CodeOwnSandboxes)
	}
	return release, err
}

// admit takes places for n VMs, and counts what it refuses. Where memory is short for one more, VMs
// that wait for forks have to go before sandboxes of users have to.
func (m *Manager) admit(n int, vcpus uint32) error {
	err := m.admitted.Enter(n, vcpus)
	var refused *admit.Error
	if errors.As(err, &refused) {
		m.cfg.Observer.Refused(refused.Code)
		if refused.Code == admit.CodeHostMemory && m.admitted.Check(1, vcpus) != nil {
			m.pool.Forget()
		}
	}
	return err
}

// givePlaces gives each child of a fork its place, and gives back those of children that did not
// start.
func (m *Manager) givePlaces(children []*Sandbox, vcpus uint32) {
	for _, s := range children {
		if s == nil {
			m.admitted.Leave(vcpus)
		} else {
			s.live.leave = m.admitted.Leaver(vcpus)
		}
	}
}
