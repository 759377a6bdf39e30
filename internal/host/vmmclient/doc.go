// Package vmmclient is the daemon's side of forkd-vmm processes: it starts one per VM, donates its
// descriptors, speaks the control protocol, and reaps or re-adopts the process.
//
// It keeps no registry of VMs and decides no limits: package sandbox does.
//
// A VMM has a directory of its own with these files, all gone after Kill:
//
//	control.sock   the VMM's listening control socket
//	vsock.sock     the VM's vsock: CONNECT <port>\n is answered with OK <port>\n, then it is a stream to the guest
//	console.ring   the guest's last console output, see package console
//	vmm.pid        process id and start time, to find the process again
package vmmclient

// Names of the files in a VMM's directory.
const (
	ControlSocket = "control.sock"
	VsockSocket   = "vsock.sock"
	consoleFile   = "console.ring"
	pidFile       = "vmm.pid"
)
