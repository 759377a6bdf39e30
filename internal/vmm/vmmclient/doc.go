// Package vmmclient is the daemon's side of forkd-vmm processes: it starts one per VM, donates its descriptors, speaks
// the control protocol, and reaps or re-adopts the process.
//
// It keeps no registry of VMs and decides no limits: that is package sandbox.
package vmmclient
