package machine

// diskFull pauses the machine because the host has no room for the guest's writes to a disk. The
// write stays in the disk's queue until the machine is resumed, and is then tried again. diskFull
// runs on a device's goroutine, which holds the device's run lock. Pausing needs that lock.
func (m *Machine) diskFull() {
	if m.stalling.Swap(true) {
		return // another goroutine is about to pause the machine
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
		if !paused { // not paused: the disk tries the write again when the machine is resumed
			m.cfg.Stalled()
		}
	}()
}
