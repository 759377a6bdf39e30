package recent

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// counted counts measurements. Each measurement takes a second. The value that a measurement
// returns is its number.
type counted struct {
	mu    sync.Mutex
	count int
	err   error
}

func (c *counted) measure() (int, error) {
	time.Sleep(time.Second)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	return c.count, c.err
}

func TestValuesAreSharedWhileTheyAreRecent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, c := New[string, int](10*time.Second), &counted{}
		want := func(want int, age time.Duration) {
			t.Helper()
			if got, err := v.Get(t.Context(), "a", age, c.measure); got != want || err != nil {
				t.Errorf("value with an age of at most %v: %d, %v, want %d", age, got, err, want)
			}
		}
		want(1, 3*time.Second)
		want(1, 3*time.Second)
		want(2, 0) // this value is not kept, because its caller has not waited for a turn
		want(1, 3*time.Second)
		time.Sleep(2 * time.Second)
		want(3, 3*time.Second)
		time.Sleep(15 * time.Second)
		want(4, time.Hour) // no kept value becomes older than the maximum given to New
		if got, _ := v.Get(t.Context(), "b", time.Hour, c.measure); got != 5 {
			t.Errorf("value of another key: %d", got)
		}
	})
}

func TestConcurrentCallersShareAMeasurement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, c := New[string, int](10*time.Second), &counted{}
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				if got, err := v.Get(t.Context(), "a", 3*time.Second, c.measure); got != 1 || err != nil {
					t.Errorf("value: %d, %v", got, err)
				}
			})
		}
		all.Wait()
		if c.count != 1 {
			t.Errorf("%d measurements", c.count)
		}
	})
}

// A caller stops waiting when its context ends. An error is not kept: the next caller measures
// again.
func TestErrorsAreNotShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, c := New[string, int](10*time.Second), &counted{err: errors.New("hangs")}
		go func() {
			if _, err := v.Get(t.Context(), "a", 3*time.Second, c.measure); !errors.Is(err, c.err) {
				t.Errorf("error %v", err)
			}
		}()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := v.Get(ctx, "a", 3*time.Second, c.measure); !errors.Is(err, context.Canceled) {
			t.Errorf("error of a caller that has left: %v", err)
		}
		if _, err := v.Get(t.Context(), "a", 3*time.Second, c.measure); !errors.Is(err, c.err) || c.count != 2 {
			t.Errorf("error %v after %d measurements", err, c.count)
		}
	})
}

func TestOldValuesAreDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := New[int, int](10 * time.Second)
		for key := range 1000 {
			if _, err := v.Get(t.Context(), key, time.Second, (&counted{}).measure); err != nil {
				t.Fatal(err)
			}
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		if n := len(v.values); n > 12 {
			t.Errorf("%d values are kept, although one is measured each second", n)
		}
	})
}
