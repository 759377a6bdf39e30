package sandbox

import "sync"

// debt is a kind of message that is owed to a guest.
type debt int

const (
	debtReset debt = iota // its connections are gone
	debtTrust             // the authority for the hosts of its secrets
)

// debts holds the messages owed to a stopped guest until it runs: the latest of each kind. So
// repeated changes of a paused sandbox's network take no more memory.
type debts struct {
	mu   sync.Mutex
	owed map[debt]func()
}

func (d *debts) owe(kind debt, tell func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.owed == nil {
		d.owed = make(map[debt]func())
	}
	d.owed[kind] = tell
}

func (d *debts) pay() {
	d.mu.Lock()
	owed := d.owed
	d.owed = nil
	d.mu.Unlock()
	for _, kind := range []debt{debtReset, debtTrust} {
		if tell := owed[kind]; tell != nil {
			tell()
		}
	}
}
