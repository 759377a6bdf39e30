// Package recent shares measurements between callers that accept values of a certain age, so that
// many callers cost no more than one. It measures only when a caller asks.
package recent

import (
	"context"
	"sync"
	"time"
)

// Values keeps the latest value of each key. Its methods may be called concurrently. Errors are not
// kept.
type Values[K comparable, V any] struct {
	most time.Duration

	mu sync.Mutex
	// +checklocks:mu
	values map[K]*value[V]
}

type value[V any] struct {
	asked time.Time // time of the latest call of Get; guarded by Values.mu

	turn  chan struct{} // lock of the fields below; has room for one element, which the holder has sent
	began time.Time     // time at which the measurement of v began; zero: v is not set
	v     V
}

// New returns an empty Values. Its method Get returns no kept value that is older than the given
// duration. The memory of the Values is bounded by the number of keys for which Get is called
// within that duration.
func New[K comparable, V any](most time.Duration) *Values[K, V] {
	return &Values[K, V]{most: most, values: make(map[K]*value[V])}
}

// Get returns the value of a key. It calls measure if the known value is older than the age that
// the caller accepts. Concurrent calls for one key wait for each other, so usually only the first
// of them calls measure. If the accepted age is 0, Get only calls measure, and does not wait.
func (v *Values[K, V]) Get(ctx context.Context, key K, age time.Duration, measure func() (V, error)) (V, error) {
	if age <= 0 {
		return measure()
	}
	of := v.of(key)
	select {
	case of.turn <- struct{}{}:
	case <-ctx.Done():
		var none V
		return none, ctx.Err()
	}
	defer func() { <-of.turn }()
	if !of.began.IsZero() && time.Since(of.began) <= min(age, v.most) {
		return of.v, nil
	}
	began := time.Now()
	now, err := measure()
	if err == nil {
		of.v, of.began = now, began
	}
	return now, err
}

// of returns the value of a key, which it creates if necessary. Before it creates a value, it
// deletes the values for which Get was not called within the duration given to New.
func (v *Values[K, V]) of(key K) *value[V] {
	v.mu.Lock()
	defer v.mu.Unlock()
	of, now := v.values[key], time.Now()
	if of == nil {
		for k, old := range v.values {
			if now.Sub(old.asked) > v.most {
				delete(v.values, k)
			}
		}
		of = &value[V]{turn: make(chan struct{}, 1)}
		v.values[key] = of
	}
	of.asked = now
	return of
}
