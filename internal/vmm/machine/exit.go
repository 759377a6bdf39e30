package machine

import (
	"fmt"
	"time"

	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/vmm/boot"
	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/kvm"
)

// exitError is the error of handleExit if the machine has stopped. It ends the vCPU's thread.
type exitError struct{ vm.Exit }

func (e *exitError) Error() string { return e.Reason.String() + ": " + e.Detail }

func stop(reason vm.ExitReason, format string, args ...any) error {
	return &exitError{vm.Exit{Reason: reason, Detail: fmt.Sprintf(format, args...)}}
}

// harmPause is the delay of a vCPU after an exit, if the vCPU has locked the memory bus or kept its
// CPU from handling events. The delay limits each vCPU to a thousand such exits per second.
const harmPause = time.Millisecond

// handleExit handles an exit of the guest. It runs on the vCPU's thread.
func (m *Machine) handleExit(c *kvm.VCPU) error {
	if c.BusLocked() || c.ExitReason() == kvm.ExitNotify {
		time.Sleep(harmPause)
	}
	switch reason := c.ExitReason(); reason {
	case kvm.ExitMMIO:
		gpa, data, write := c.MMIO()
		return m.mmio(guestmem.GPA(gpa), data, write)
	case kvm.ExitIO:
		port, size, data, out := c.IO()
		return m.io(port, size, data, out)
	case kvm.ExitShutdown:
		return stop(vm.ExitFault, "triple fault")
	case kvm.ExitFailEntry:
		return stop(vm.ExitFault, "the CPU refuses the guest's state (hardware reason %#x)", c.Suberror())
	case kvm.ExitInternalError:
		return stop(vm.ExitFault, "KVM cannot run the guest on (internal error %d)", c.Suberror())
	case kvm.ExitSystemEvent:
		return stop(vm.ExitReset, "system event %d", c.Suberror())
	case kvm.ExitBusLock:
		return nil // the delay above is the only effect
	case kvm.ExitNotify:
		if c.Suberror()&kvm.NotifyContextInvalid != 0 {
			return stop(vm.ExitFault, "the guest kept the CPU from seeing events, and its state is lost")
		}
		return nil
	default:
		return stop(vm.ExitFault, "unexpected KVM exit %d", reason)
	}
}

// mmio handles an access to an address outside RAM. Addresses without a device read as zero.
func (m *Machine) mmio(gpa guestmem.GPA, data []byte, write bool) error {
	if gpa >= boot.VirtioBase {
		i := uint64(gpa-boot.VirtioBase) / boot.VirtioStep
		if i < uint64(len(m.slots)) && m.slots[i] != nil {
			off := uint64(gpa-boot.VirtioBase) % boot.VirtioStep
			if write {
				m.slots[i].transport.Write(off, data)
			} else {
				m.slots[i].transport.Read(off, data)
			}
			return nil
		}
	}
	if !write {
		clear(data)
	}
	return nil
}

// io handles an access to a port. The access consists of one or more units of size bytes. Ports
// without a device read as all ones.
func (m *Machine) io(port uint16, size int, data []byte, out bool) error {
	for len(data) >= size && size > 0 {
		unit := data[:size]
		data = data[size:]
		if !out {
			m.in(port, unit)
		} else if err := m.out(port, unit); err != nil {
			return err
		}
	}
	return nil
}

func (m *Machine) in(port uint16, p []byte) {
	for i := range p {
		p[i] = 0xff
	}
	switch {
	case port >= boot.SerialPort && port < boot.SerialPort+boot.SerialPorts:
		p[0] = m.serial.read(port - boot.SerialPort)
	case port == boot.SleepControlPort, port == boot.SleepStatusPort, port == boot.I8042Port:
		p[0] = 0
	}
}

func (m *Machine) out(port uint16, p []byte) error {
	v := p[0]
	switch {
	case port >= boot.SerialPort && port < boot.SerialPort+boot.SerialPorts:
		return m.serial.write(port-boot.SerialPort, v)
	case port == boot.SleepControlPort && v == boot.PowerOffValue:
		return stop(vm.ExitPowerOff, "")
	case port == boot.ResetPort && v == boot.ResetValue,
		port == boot.I8042Port && v == boot.I8042Reset,
		port == boot.PCIResetPort && v&boot.PCIResetValue == boot.PCIResetValue:
		return stop(vm.ExitReset, "")
	}
	return nil
}
