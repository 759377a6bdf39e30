package admit

import (
	"fmt"
	"sync"
)

// Owners counts, for each owner, the sandboxes that are being created. So two requests cannot both
// take the owner's last place. The zero Owners is ready to use.
type Owners struct {
	mu sync.Mutex
	// +checklocks:mu
	coming map[string]int
}

// Reserve reserves room for n more sandboxes of an owner. The parameter most is the maximum number
// of the owner's sandboxes (0: unlimited), and have returns their present number. The caller must
// call release when the sandboxes exist or have failed. The error is an *Error.
func (o *Owners) Reserve(owner string, most, n int, have func() int) (release func(), err error) {
	if most == 0 {
		return func() {}, nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if has := o.coming[owner] + have(); has+n > most {
		return nil, &Error{Code: CodeOwnSandboxes, Reason: fmt.Sprintf(
			"%d more would exceed the maximum of %d sandboxes of %s, which has %d; kill some", n, most, owner, has)}
	}
	if o.coming == nil {
		o.coming = make(map[string]int)
	}
	o.coming[owner] += n
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.coming[owner] -= n; o.coming[owner] == 0 {
			delete(o.coming, owner)
		}
	}, nil
}
