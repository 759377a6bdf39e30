package machine

// diskFull pauses the machine because the host has no room for the guest's writes to a disk. The
// write waits in the disk's queue. It is tried again when the machine is resumed. diskFull is
// called on a device's goroutine, with its run lock held, which a pause waits for.
func (m *Machine) diskFull() {
	if m.stalling.Swap(true) {
		return // it is about to be paused
	}
	go func() {
		m.mu.Lock()
		if !m.stalling.Load() { // the machine has been restored in the meantime
			m.mu.Unlock()
			return
		}
		paused, _ := m.cpus.stats()
		m.pause()
		m.stalling.Store(false) // the devices are quiesced
		m.stalled = m.stalled || !paused
		m.mu.Unlock()
		if !paused { // otherwise the write is tried again when the machine is resumed
			m.cfg.Stalled()
		}
	}()
}
