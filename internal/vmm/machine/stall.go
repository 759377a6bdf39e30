package machine

// diskFull pauses the machine because the host has no room for the guest's writes to a disk. The
// write stays in the disk's queue, and the disk tries it again when the machine is resumed.
// diskFull is called while a device's run lock is held. A pause needs that lock, so diskFull starts
// a goroutine that pauses the machine.
func (m *Machine) diskFull() {
	if m.stalling.Swap(true) {
		return // another goroutine is about to pause the machine
	}
	go func() {
		m.mu.Lock()
		if !m.stalling.Load() { // false if the machine has been rolled back in the meantime
			m.mu.Unlock()
			return
		}
		paused, _ := m.cpus.stats()
		m.pause()
		m.stalling.Store(false) // the devices are quiesced, so no device can call diskFull now
		m.stalled = m.stalled || !paused
		m.mu.Unlock()
		// A machine that was already paused is not reported, because the disk tries the write again
		// after a Resume.
		if !paused {
			m.cfg.Stalled()
		}
	}()
}
