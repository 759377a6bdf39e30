//go:build !race

package kvm

const serveNone = false // see race.go
