package gate

import "testing"

func TestSingleRunsOnceAtATime(t *testing.T) {
	var s Single
	n := 0
	for range 2 {
		s.Do(func() {
			n++
			s.Do(func() { t.Error("a second call ran") })
		})
	}
	if n != 2 {
		t.Errorf("%d calls ran, want 2", n)
	}
}
