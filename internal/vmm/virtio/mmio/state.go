package mmio

import (
	"fmt"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/vmm/virtio/virtq"
)

// stateVersion changes whenever the layout of Save changes.
const stateVersion = 1

// Save appends the state of registers, queues and device. Preconditions: the transport is quiesced.
func (t *Transport) Save(w *codec.Writer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w.U32(stateVersion)
	w.U32(t.info.ID)
	w.U64(t.offered())
	w.U32(t.status.Load())
	w.U32(t.interrupt.Load())
	w.U32(t.deviceFeaturesSel)
	w.U32(t.driverFeaturesSel)
	w.U64(t.driverFeatures)
	w.U32(t.queueSel)
	w.Bool(t.running)
	w.U32(uint32(len(t.queueConfigs)))
	for i, c := range t.queueConfigs {
		w.U16(c.size)
		w.Bool(c.ready)
		w.U64(c.desc)
		w.U64(c.driver)
		w.U64(c.device)
		if t.running && t.queues[i] != nil {
			t.queues[i].Save(w)
		}
	}
	t.dev.Save(w)
}

// Restore resets the device and reads the state that Save wrote. The state may come from another
// transport with the same kind of device. Restore does not access guest memory. After an error the
// device stays reset. Preconditions: the transport is quiesced, and stays quiesced until Unquiesce.
func (t *Transport) Restore(r *codec.Reader) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stop()
	t.resetRegisters()
	if err := t.restore(r); err != nil {
		t.stop()
		t.resetRegisters()
		return fmt.Errorf("restore virtio device %d: %w", t.info.ID, err)
	}
	return nil
}

func (t *Transport) restore(r *codec.Reader) error {
	if v := r.U32(); v != stateVersion {
		return fmt.Errorf("transport state version %d, want %d", v, stateVersion)
	}
	if id := r.U32(); id != t.info.ID {
		return fmt.Errorf("state is of device type %d", id)
	}
	if f := r.U64(); f != t.offered() {
		return fmt.Errorf("state is of a device with features %#x, this one has %#x", f, t.offered())
	}
	t.status.Store(r.U32())
	t.interrupt.Store(r.U32())
	t.deviceFeaturesSel = r.U32()
	t.driverFeaturesSel = r.U32()
	t.driverFeatures = r.U64()
	t.queueSel = r.U32()
	running := r.Bool()
	if n := r.U32(); r.Err() == nil && int(n) != len(t.queueConfigs) {
		return fmt.Errorf("state has %d queues, the device %d", n, len(t.queueConfigs))
	}
	indices := make([][]byte, len(t.queueConfigs))
	for i := range t.queueConfigs {
		t.queueConfigs[i] = queueConfig{size: r.U16(), ready: r.Bool(), desc: r.U64(), driver: r.U64(), device: r.U64()}
		if running && t.queueConfigs[i].ready {
			indices[i] = r.Raw(virtq.StateSize)
		}
	}
	if err := t.dev.Restore(r); err != nil {
		return err
	}
	if err := r.Err(); err != nil || !running {
		return err
	}
	if t.status.Load()&statusDriverOK == 0 || !t.acceptable() {
		return fmt.Errorf("a running device with status %#x and features %#x", t.status.Load(), t.driverFeatures)
	}
	if err := t.activate(); err != nil {
		return err
	}
	for i, q := range t.queues {
		if q == nil {
			continue
		}
		if err := q.Restore(codec.NewReader(indices[i])); err != nil {
			return err
		}
	}
	return nil
}
