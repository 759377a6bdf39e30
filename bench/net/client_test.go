package main

import (
	"fmt"
	"testing"
	"time"
)

// A client carries out every kind of order and returns a figure.
func TestOrders(t *testing.T) {
	port, err := serve()
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range []byte{opDown, opUp, opRequest, opConnect} {
		o := order{op, fmt.Sprintf("127.0.0.1:%d", port), 20 * time.Millisecond}
		r, err := o.carryOut()
		if err != nil || (r.MiBps > 0) == (r.P50 > 0) || r.P99 < r.P50 {
			t.Errorf("%c: %+v, %v", op, r, err)
		}
	}
}
