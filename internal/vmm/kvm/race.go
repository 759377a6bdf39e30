//go:build race

package kvm

// serveNone is true because atomic operations call the race detector, which needs a processor of
// the Go scheduler.
const serveNone = true
