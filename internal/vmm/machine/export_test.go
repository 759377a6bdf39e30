package machine

import (
	"errors"
	"fmt"
	"io"
)

// Close frees the memory, the files and the threads of a machine. Only tests need it, because a VMM
// process has only one machine and exits with it.
func (m *Machine) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waitCopied()
	m.pause()
	return errors.Join(m.dropKept(), m.cpus.close(), m.closeDevices(), m.vm.Close(), m.mem.Close())
}

// closeDevices closes the devices.
//
// Preconditions: the machine is paused.
func (m *Machine) closeDevices() error {
	var errs []error
	for _, s := range m.slots {
		if s == nil {
			continue
		}
		errs = append(errs, s.transport.Close())
		if c, ok := s.dev.(io.Closer); ok {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}

// DeviceErrors returns, for each device that has failed, the reason for its DEVICE_NEEDS_RESET.
func (m *Machine) DeviceErrors() error {
	var errs []error
	for i, s := range m.slots {
		if s == nil {
			continue
		}
		if err := s.transport.Err(); err != nil {
			errs = append(errs, fmt.Errorf("device %d: %w", i, err))
		}
	}
	return errors.Join(errs...)
}
