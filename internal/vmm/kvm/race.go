//go:build race

package kvm

// serveNone disables serveRegister under the race detector. Atomic operations then call the race
// detector, which needs a processor of the Go scheduler.
const serveNone = true
