package machine

import (
	"testing"
	"testing/synctest"

	"github.com/forkd/forkd/internal/vmm/guestmem"
)

// A write that finds no space on the host pauses the machine. If the machine was rolled back after
// the write, the machine is not paused.
func TestStallOfThePastPausesNobody(t *testing.T) {
	for name, restored := range map[string]bool{"": false, "rolled back": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				told := false
				m := &Machine{mem: &guestmem.Memory{}, cfg: Config{Stalled: func() { told = true }}}
				m.cpus = newVCPUs(nil, nil, nil)
				m.cpus.resume(nil)
				m.mu.Lock() // simulates a rollback
				m.diskFull()
				if restored {
					if err := m.forget(); err != nil {
						t.Fatal(err)
					}
					m.cpus.resume(nil)
				}
				m.mu.Unlock()
				synctest.Wait()
				if paused, _ := m.cpus.stats(); paused == restored || told == restored {
					t.Errorf("paused %v, told %v", paused, told)
				}
			})
		})
	}
}
