package daemon

import (
	"errors"
	"testing"
	"time"
)

// That VMs cannot run is asked again, at times; that they can is not.
func TestKVMState(t *testing.T) {
	var none *kvmState
	if err := none.why(); err != nil {
		t.Errorf("nobody was asked: %v", err)
	}
	asked, answer := 0, errors.New("unfit")
	k := &kvmState{probe: func() error { asked++; return answer }}
	why := func(want error, times int) {
		t.Helper()
		if err := k.why(); err != want || asked != times {
			t.Errorf("%v, asked %d times, want %v and %d", err, asked, want, times)
		}
	}
	why(answer, 1)
	k.asked = time.Now().Add(time.Hour) // however slow this host is
	why(answer, 1)
	k.asked = time.Now().Add(-2 * kvmAgain)
	why(answer, 2)
	k.asked, answer = time.Now().Add(-2*kvmAgain), nil
	why(nil, 3)
	k.asked = time.Now().Add(-2 * kvmAgain)
	why(nil, 3)
}
