// Package debt keeps messages for the guest of a paused VM until the VM runs.
//
// It sends nothing by itself: its users give it the functions that send, and say when the VM runs.
package debt

import "sync"

// Kind is a kind of message.
type Kind int

// The kinds, in the order in which a guest gets them.
const (
	Reset Kind = iota // the guest's connections have gone
	Trust             // the authority that certifies the hosts of its secrets
)

// Debts holds the latest message of each kind for one guest, so repeated changes of a paused
// sandbox's network do not accumulate. The zero value is ready to use; methods may be called
// concurrently.
type Debts struct {
	mu sync.Mutex
	// +checklocks:mu
	owed map[Kind]func()
}

// Owe makes Pay call tell for a kind. It replaces an earlier function of that kind.
func (d *Debts) Owe(kind Kind, tell func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.owed == nil {
		d.owed = make(map[Kind]func())
	}
	d.owed[kind] = tell
}

// Pay calls the functions, once.
func (d *Debts) Pay() {
	d.mu.Lock()
	owed := d.owed
	d.owed = nil
	d.mu.Unlock()
	for _, kind := range []Kind{Reset, Trust} {
		if tell := owed[kind]; tell != nil {
			tell()
		}
	}
}

// Count returns the number of messages.
func (d *Debts) Count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.owed)
}
