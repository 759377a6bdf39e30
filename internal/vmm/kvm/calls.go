package kvm

import "github.com/forkd/forkd/internal/jail"

// Calls returns the KVM requests that a machine makes while it exists, the most frequent request
// first. The list does not include the requests of Probe, because Probe does not run in a jail.
func Calls() []jail.Call {
	return jail.Ioctls(ioRun, ioCheckExtension, ioGetMSRIndexList, ioGetIRQChip, ioSetIRQChip, ioIRQLine, ioIOEventFD,
		ioGetClock, ioSetClock, ioGetRegs, ioSetRegs, ioGetSregs, ioSetSregs, ioGetMSRs, ioSetMSRs, ioSetCPUID2,
		ioGetLAPIC, ioSetLAPIC, ioGetXSave, ioSetXSave, ioGetXCRs, ioSetXCRs, ioGetDebugRegs, ioSetDebugRegs,
		ioGetVCPUEvents, ioSetVCPUEvents, ioGetMPState, ioSetMPState, ioGetTSCKHz, ioKVMClockCtrl, ioSetTSCKHz)
}

// SetUpCalls returns the KVM requests that only the creation of a machine needs.
func SetUpCalls() []jail.Call {
	return jail.Ioctls(ioGetAPIVersion, ioCreateVM, ioGetVCPUMmapSize, ioGetSupportedCPUID, ioCreateVCPU,
		ioSetUserMemoryRegion, ioSetTSSAddr, ioSetIdentityMapAddr, ioCreateIRQChip, ioEnableCap)
}
