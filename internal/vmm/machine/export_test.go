package machine

import "errors"

// Close gives back the memory, the files and the threads of a machine. Only tests need it: a VMM
// process has one machine and ends with it.
func (m *Machine) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waitCopied()
	m.pause()
	errs := []error{m.cpus.close()}
	for _, s := range m.slots {
		if s != nil {
			errs = append(errs, s.transport.Close(), s.irq.Close())
		}
	}
	errs = append(errs, m.net.Close())
	for _, d := range m.disks {
		errs = append(errs, d.Close())
	}
	return errors.Join(append(errs, m.genIntr.Close(), m.tracker.Close(), m.vm.Close(), m.mem.Close())...)
}
