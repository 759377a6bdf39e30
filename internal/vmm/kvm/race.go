//go:build race

package kvm

// serveNone disables serveRegister if the program is built with the race detector. Atomic
// operations then call the detector, which needs a processor of the Go scheduler. serveRegister
// runs without one.
const serveNone = true
