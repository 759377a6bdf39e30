package kvm

import "github.com/forkd/forkd/internal/jail"

// Calls are the requests of KVM that a machine makes as long as it lives, the one that is made all
// the time first. Those of the probe are not among them: it does not run in a jail.
func Calls() []jail.Call {
	return jail.Ioctls(ioRun, ioCheckExtension, ioGetMSRIndexList, ioGetIRQChip, ioSetIRQChip, ioIRQLine, ioIOEventFD,
		ioGetClock, ioSetClock, ioGetRegs, ioSetRegs, ioGetSregs, ioSetSregs, ioGetMSRs, ioSetMSRs, ioSetCPUID2,
		ioGetLAPIC, ioSetLAPIC, ioGetXSave, ioSetXSave, ioGetXCRs, ioSetXCRs, ioGetDebugRegs, ioSetDebugRegs,
		ioGetVCPUEvents, ioSetVCPUEvents, ioGetMPState, ioSetMPState, ioGetTSCKHz, ioKVMClockCtrl, ioSetTSCKHz)
}

// SetUpCalls are the requests that only make a machine, before anything is in it.
func SetUpCalls() []jail.Call {
	return jail.Ioctls(ioGetAPIVersion, ioCreateVM, ioGetVCPUMmapSize, ioGetSupportedCPUID, ioCreateVCPU,
		ioSetUserMemoryRegion, ioSetTSSAddr, ioSetIdentityMapAddr, ioCreateIRQChip, ioEnableCap)
}
