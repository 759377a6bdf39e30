package gate

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Each calls the function once for each item, and as many calls run at a time as the limit permits.
func TestEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most, sum atomic.Int64
		start := time.Now()
		Each(3, []int{10, 20, 30, 40, 50, 60, 70}, func(i, item int) {
			n := now.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			sum.Add(int64(i * item))
			time.Sleep(time.Second)
			now.Add(-1)
		})
		if got := sum.Load(); got != 1120 {
			t.Errorf("the sum is %d", got)
		}
		if most.Load() != 3 || time.Since(start) != 3*time.Second {
			t.Errorf("%d calls at a time, in %v", most.Load(), time.Since(start))
		}
	})
	Each(1, nil, func(int, int) { t.Error("a call without an item") })
}
