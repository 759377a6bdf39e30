// Package vmmclient is the daemon's side of forkd-vmm processes. It starts a process for each VM,
// sends descriptors to it, speaks the control protocol, and waits for its exit. It also finds
// processes that an earlier daemon has started.
//
// Package sandbox keeps the list of VMs and decides their limits.
//
// A branch saves a machine, which then continues. A rebase maps the memory layer of a branch in
// place of pages that the machine has not changed since. A frame socket carries Ethernet frames
// between a VM and forkd-net.
//
// A VMM has its own directory with these files, which Kill removes:
//
//	control.sock   the VMM's listening control socket
//	vsock.sock     the VM's vsock. A client sends CONNECT <port>\n, and the VMM answers OK <port>\n.
//	               Then the connection is a stream to the guest.
//	frames.sock    the VMM accepts its ends of frame sockets here
//	console.ring   the guest's last console output, see package console
//	vmm.pid        process id and start time, for finding the process again
package vmmclient

// Names of the files in a VMM's directory.
const (
	ControlSocket = "control.sock"
	VsockSocket   = "vsock.sock"
	framesSocket  = "frames.sock"
	consoleFile   = "console.ring"
	pidFile       = "vmm.pid"
)
