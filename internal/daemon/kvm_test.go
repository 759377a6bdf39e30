package daemon

import (
	"errors"
	"testing"
	"time"
)

// A negative or uncertain result is probed again after a while. A positive result is final.
func TestKVMState(t *testing.T) {
	var none *kvmState
	if err := none.why(); err != nil {
		t.Errorf("nobody was asked: %v", err)
	}
	asked, answer, sure := 0, errors.New("unfit"), true
	k := &kvmState{probe: func() (bool, error) { asked++; return sure, answer }}
	why := func(want error, times int) {
		t.Helper()
		if err := k.why(); !errors.Is(err, want) || asked != times {
			t.Errorf("%v, asked %d times, want %v and %d", err, asked, want, times)
		}
	}
	why(answer, 1)
	k.until = time.Now().Add(time.Hour) // expire only when the test says so, however slow the host is
	why(answer, 1)
	k.until = time.Time{}
	why(answer, 2)
	k.until, answer, sure = time.Time{}, nil, false
	why(nil, 3)
	k.until = time.Now().Add(time.Hour)
	why(nil, 3)
	k.until, answer, sure = time.Time{}, errors.New("unfit after all"), true
	why(answer, 4)
	k.until, answer = time.Time{}, nil
	why(nil, 5)
	k.until = time.Time{}
	why(nil, 5)
}
