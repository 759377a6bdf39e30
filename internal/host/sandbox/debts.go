package sandbox

import "sync"

// debt is a kind of thing that a guest has to be told.
type debt int

const (
	debtReset debt = iota // its connections have gone
	debtTrust             // by whom it is to know the hosts of its secrets
)

// debts are what the guest of a VM that stands still has to be told when it runs: the latest of each
// kind. However often somebody changes the network of a paused sandbox, no more is kept for it.
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
