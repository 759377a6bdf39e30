// Package debt keeps what the guest of a VM that stands still has to be told when it runs.
//
// It tells nothing by itself: what is told, and when the guest runs, is for its users to say.
package debt

import "sync"

// Kind is a kind of thing that a guest has to be told.
type Kind int

// The kinds, in the order in which a guest is told of them.
const (
	Reset Kind = iota // its connections have gone
	Trust             // by whom it is to know the hosts of its secrets
)

// Debts are what one guest has to be told: the latest of each kind. However often somebody changes the
// network of a paused sandbox, no more is kept for it. The zero value is ready to use; methods may be
// called concurrently.
type Debts struct {
	mu sync.Mutex
	// +checklocks:mu
	owed map[Kind]func()
}

// Owe has Pay call tell, in the place of what it would have called for that kind.
func (d *Debts) Owe(kind Kind, tell func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.owed == nil {
		d.owed = make(map[Kind]func())
	}
	d.owed[kind] = tell
}

// Pay tells the guest.
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

// Count returns of how many kinds there is something to tell.
func (d *Debts) Count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.owed)
}
