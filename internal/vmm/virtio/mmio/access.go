package mmio

import (
	"encoding/binary"

	"github.com/forkd/forkd/internal/vmm/virtio"
)

// offered returns the feature bits that the device offers to the driver.
func (t *Transport) offered() uint64 {
	return t.info.Features | virtio.FVersion1 | virtio.FEventIdx | virtio.FIndirectDesc
}

// Read handles a vCPU's load of len(p) bytes at an offset of the window. Loads outside registers
// read as zero.
func (t *Transport) Read(off uint64, p []byte) {
	clear(p)
	if off >= regConfig {
		t.dev.ReadConfig(off-regConfig, p)
		return
	}
	if len(p) == 4 {
		binary.LittleEndian.PutUint32(p, t.readRegister(off))
	}
}

func (t *Transport) readRegister(off uint64) uint32 {
	// These registers are read without locks, because the driver reads the first one in every
	// interrupt handler, even while the device is busy.
	switch off {
	case RegInterruptStatus:
		return t.interrupt.Load()
	case regStatus:
		return t.status.Load()
	case regMagic:
		return magic
	case regVersion:
		return version
	case regDeviceID:
		return t.info.ID
	case regVendorID:
		return vendorID
	case regConfigGeneration:
		return t.generation.Load()
	case regSHMLenLow, regSHMLenHigh, regSHMBaseLow, regSHMBaseHigh:
		return 0xffffffff // length of shared memory: none (virtio 1.2 §4.2.2)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch off {
	case regDeviceFeatures:
		return half(t.offered(), t.deviceFeaturesSel)
	case regQueueSizeMax:
		if int64(t.queueSel) < int64(len(t.info.QueueSizes)) {
			return uint32(t.info.QueueSizes[t.queueSel])
		}
	case regQueueReady:
		if q := t.selected(); q != nil && q.ready {
			return 1
		}
	}
	return 0
}

// half returns the low 32 bits of v if sel is 0, and the high 32 bits if sel is 1.
func half(v uint64, sel uint32) uint32 {
	if sel > 1 {
		return 0
	}
	return uint32(v >> (32 * sel))
}

// setHalf replaces the bits of v that half returns.
func setHalf(v *uint64, sel, bits uint32) {
	if sel <= 1 {
		*v = *v&^(0xffffffff<<(32*sel)) | uint64(bits)<<(32*sel)
	}
}

// selected returns the queue that the register QueueSel selects, or nil.
func (t *Transport) selected() *queueConfig {
	if int64(t.queueSel) >= int64(len(t.queueConfigs)) {
		return nil
	}
	return &t.queueConfigs[t.queueSel]
}

// Write handles a vCPU's store of p at an offset of the window. Stores outside writable registers
// are ignored.
func (t *Transport) Write(off uint64, p []byte) {
	if len(p) != 4 || off >= regConfig {
		return
	}
	v := binary.LittleEndian.Uint32(p)
	// These registers are written without locks, for the reason that readRegister gives.
	switch off {
	case RegInterruptACK:
		t.interrupt.And(^v)
		return
	case RegQueueNotify:
		t.Kick()
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch off {
	case regStatus:
		t.writeStatus(v)
	case regDeviceFeaturesSel:
		t.deviceFeaturesSel = v
	case regDriverFeaturesSel:
		t.driverFeaturesSel = v
	case regDriverFeatures:
		if t.status.Load()&statusFeaturesOK == 0 { // after FEATURES_OK, features cannot change
			setHalf(&t.driverFeatures, t.driverFeaturesSel, v)
		}
	case regQueueSel:
		t.queueSel = v
	default:
		t.writeQueue(off, v)
	}
}

// writeQueue sets a register of the selected queue. If the device runs, writeQueue does nothing.
func (t *Transport) writeQueue(off uint64, v uint32) {
	q := t.selected()
	if q == nil || t.status.Load()&(statusFeaturesOK|statusDriverOK) != statusFeaturesOK {
		return
	}
	if off == regQueueReady {
		q.ready = v == 1
		return
	}
	if q.ready {
		return
	}
	switch off {
	case regQueueSize:
		// An invalid size is stored as 0, which activate refuses.
		if q.size = 0; v <= uint32(t.info.QueueSizes[t.queueSel]) {
			q.size = uint16(v)
		}
	case regQueueDescLow:
		setHalf(&q.desc, 0, v)
	case regQueueDescHigh:
		setHalf(&q.desc, 1, v)
	case regQueueDriverLow:
		setHalf(&q.driver, 0, v)
	case regQueueDriverHigh:
		setHalf(&q.driver, 1, v)
	case regQueueDeviceLow:
		setHalf(&q.device, 0, v)
	case regQueueDeviceHigh:
		setHalf(&q.device, 1, v)
	}
}

// writeStatus handles a store to the status register. It moves the device through the
// initialization in virtio 1.2 §3.1.1:
//
//	0 ─▶ ACKNOWLEDGE ─▶ DRIVER ─▶ FEATURES_OK ─▶ DRIVER_OK      0 from anywhere resets
//
// The driver may only add bits, in this order. Any other store changes nothing. The driver notices
// an ignored store when it reads the register back, which it must do after FEATURES_OK.
func (t *Transport) writeStatus(v uint32) {
	old := t.status.Load()
	if v == 0 {
		t.lockRun()
		t.stop()
		t.resetRegisters()
		t.run.Unlock()
		return
	}
	const known = statusAcknowledge | statusDriver | statusDriverOK | statusFeaturesOK | statusFailed
	// Only the device sets NEEDS_RESET; only a reset clears it.
	if v &^= statusNeedsReset; v&^known != 0 || old&known&^v != 0 || old&statusNeedsReset != 0 {
		return
	}
	added := v &^ old
	switch {
	case added&statusFailed != 0:
	case added&statusDriver != 0 && v&statusAcknowledge == 0,
		added&statusFeaturesOK != 0 && v&statusDriver == 0,
		added&statusDriverOK != 0 && old&statusFeaturesOK == 0:
		return
	case added&statusFeaturesOK != 0 && !t.acceptable():
		v &^= statusFeaturesOK
	}
	t.status.Store(v)
	if added&statusDriverOK != 0 {
		t.lockRun()
		if err := t.activate(); err != nil {
			t.Fail(err)
		}
		t.run.Unlock()
		// Serve the queues, because notifications before DRIVER_OK had no effect.
		t.Kick()
	}
}

// acceptable reports whether the driver has accepted a legal set of features. The set must contain
// only offered features, and it must contain VERSION_1, which legacy drivers do not accept.
func (t *Transport) acceptable() bool {
	return t.driverFeatures&^t.offered() == 0 && t.driverFeatures&virtio.FVersion1 != 0
}
