// Package debt stores messages for the guest of a paused VM until the VM runs.
//
// It sends nothing by itself: callers provide the functions that send the messages, and call Pay
// when the VM runs.
package debt

import "sync"

// Kind is a kind of message.
type Kind int

// Kinds of messages, in the order in which Pay sends them.
const (
	Reset Kind = iota // the peers of the guest's connections are gone
	Trust             // the guest must trust the CA for hosts of secrets
)

// Debts holds messages for one guest. It keeps only the latest message of each kind, so messages do
// not accumulate if the network of a paused sandbox changes repeatedly. The zero value is ready to
// use. Methods may be called concurrently.
type Debts struct {
	mu sync.Mutex
	// +checklocks:mu
	owed map[Kind]func()
}

// Owe stores the function tell, which sends a message, until Pay calls it. A stored function of the
// same kind is replaced.
func (d *Debts) Owe(kind Kind, tell func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.owed == nil {
		d.owed = make(map[Kind]func())
	}
	d.owed[kind] = tell
}

// Pay calls each stored function once and forgets it.
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

// Count returns the number of stored messages.
func (d *Debts) Count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.owed)
}
