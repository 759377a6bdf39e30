//go:build ignore

// Input of `go tool cgo -godefs`: the KVM ABI of <linux/kvm.h> as Go types and constants. See
// gen.sh.

package kvm

/*
#include <linux/kvm.h>
#include <linux/kvm_para.h>

// Records that Go cannot express: cpuid2_head and msrs_head omit the array that follows them in
// memory, and the other records have bytes in place of unions and nested records.
struct cpuid2_head { __u32 nent; __u32 padding; };
struct msrs_head { __u32 nmsrs; __u32 pad; };
struct irq_level { __u32 irq; __u32 level; };
struct irqchip_raw { __u32 chip_id; __u32 pad; __u8 state[512]; };
struct mmio_exit { __u64 phys_addr; __u8 data[8]; __u32 len; __u8 is_write; };
struct io_exit { __u8 direction; __u8 size; __u16 port; __u32 count; __u64 data_offset; };
struct vcpu_events_raw {
	__u8 exception[8]; __u8 interrupt[4]; __u8 nmi[4]; __u32 sipi_vector; __u32 flags;
	__u8 rest[sizeof(struct kvm_vcpu_events) - 24];
};
struct xcrs_raw { __u8 raw[sizeof(struct kvm_xcrs)]; };
struct run_head {
	__u8 request_interrupt_window; __u8 immediate_exit; __u8 padding1[6];
	__u32 exit_reason; __u8 ready_for_interrupt_injection; __u8 if_flag; __u16 flags;
	__u64 cr8; __u64 apic_base;
	__u8 exit[256];
};
*/
import "C"

// ABI records.
type (
	Regs         C.struct_kvm_regs
	Segment      C.struct_kvm_segment
	DTable       C.struct_kvm_dtable
	Sregs        C.struct_kvm_sregs
	DebugRegs    C.struct_kvm_debugregs
	VCPUEvents   C.struct_vcpu_events_raw
	MPState      C.struct_kvm_mp_state
	LAPIC        C.struct_kvm_lapic_state
	XSave        C.struct_kvm_xsave
	XCRs         C.struct_xcrs_raw
	ClockData    C.struct_kvm_clock_data
	IRQChip      C.struct_irqchip_raw
	CPUIDEntry   C.struct_kvm_cpuid_entry2
	MSREntry     C.struct_kvm_msr_entry
	memoryRegion C.struct_kvm_userspace_memory_region
	irqLevel     C.struct_irq_level
	ioeventfd    C.struct_kvm_ioeventfd
	cpuidHead    C.struct_cpuid2_head
	msrsHead     C.struct_msrs_head
	enableCap    C.struct_kvm_enable_cap
	mmioExit     C.struct_mmio_exit
	ioExit       C.struct_io_exit
	runHead      C.struct_run_head
)

// ioctl request numbers.
const (
	ioGetAPIVersion       = C.KVM_GET_API_VERSION
	ioCreateVM            = C.KVM_CREATE_VM
	ioCheckExtension      = C.KVM_CHECK_EXTENSION
	ioGetVCPUMmapSize     = C.KVM_GET_VCPU_MMAP_SIZE
	ioGetSupportedCPUID   = C.KVM_GET_SUPPORTED_CPUID
	ioGetMSRIndexList     = C.KVM_GET_MSR_INDEX_LIST
	ioCreateVCPU          = C.KVM_CREATE_VCPU
	ioSetUserMemoryRegion = C.KVM_SET_USER_MEMORY_REGION
	ioSetTSSAddr          = C.KVM_SET_TSS_ADDR
	ioSetIdentityMapAddr  = C.KVM_SET_IDENTITY_MAP_ADDR
	ioCreateIRQChip       = C.KVM_CREATE_IRQCHIP
	ioGetIRQChip          = C.KVM_GET_IRQCHIP
	ioSetIRQChip          = C.KVM_SET_IRQCHIP
	ioIRQLine             = C.KVM_IRQ_LINE
	ioIOEventFD           = C.KVM_IOEVENTFD
	ioGetClock            = C.KVM_GET_CLOCK
	ioSetClock            = C.KVM_SET_CLOCK
	ioRun                 = C.KVM_RUN
	ioGetRegs             = C.KVM_GET_REGS
	ioSetRegs             = C.KVM_SET_REGS
	ioGetSregs            = C.KVM_GET_SREGS
	ioSetSregs            = C.KVM_SET_SREGS
	ioGetMSRs             = C.KVM_GET_MSRS
	ioSetMSRs             = C.KVM_SET_MSRS
	ioSetCPUID2           = C.KVM_SET_CPUID2
	ioGetLAPIC            = C.KVM_GET_LAPIC
	ioSetLAPIC            = C.KVM_SET_LAPIC
	ioGetXSave            = C.KVM_GET_XSAVE
	ioSetXSave            = C.KVM_SET_XSAVE
	ioGetXCRs             = C.KVM_GET_XCRS
	ioSetXCRs             = C.KVM_SET_XCRS
	ioGetDebugRegs        = C.KVM_GET_DEBUGREGS
	ioSetDebugRegs        = C.KVM_SET_DEBUGREGS
	ioGetVCPUEvents       = C.KVM_GET_VCPU_EVENTS
	ioSetVCPUEvents       = C.KVM_SET_VCPU_EVENTS
	ioGetMPState          = C.KVM_GET_MP_STATE
	ioSetMPState          = C.KVM_SET_MP_STATE
	ioGetTSCKHz           = C.KVM_GET_TSC_KHZ
	ioKVMClockCtrl        = C.KVM_KVMCLOCK_CTRL
	ioSetTSCKHz           = C.KVM_SET_TSC_KHZ
	ioEnableCap           = C.KVM_ENABLE_CAP
)

// Capabilities (KVM_CHECK_EXTENSION).
const (
	CapIRQChip            = C.KVM_CAP_IRQCHIP
	CapUserMemory         = C.KVM_CAP_USER_MEMORY
	CapIOEventFD          = C.KVM_CAP_IOEVENTFD
	CapIOEventFDAnyLength = C.KVM_CAP_IOEVENTFD_ANY_LENGTH
	CapXSave              = C.KVM_CAP_XSAVE
	CapXCRs               = C.KVM_CAP_XCRS
	CapAdjustClock        = C.KVM_CAP_ADJUST_CLOCK
	CapTSCDeadline        = C.KVM_CAP_TSC_DEADLINE_TIMER
	CapImmediateExit      = C.KVM_CAP_IMMEDIATE_EXIT
	CapMPState            = C.KVM_CAP_MP_STATE
	CapVCPUEvents         = C.KVM_CAP_VCPU_EVENTS
	CapDebugRegs          = C.KVM_CAP_DEBUGREGS
	CapExtCPUID           = C.KVM_CAP_EXT_CPUID
	CapTSCControl         = C.KVM_CAP_TSC_CONTROL
	CapX2APICAPI          = C.KVM_CAP_X2APIC_API
	CapNrVCPUs            = C.KVM_CAP_NR_VCPUS
	CapMaxVCPUs           = C.KVM_CAP_MAX_VCPUS
	CapNrMemslots         = C.KVM_CAP_NR_MEMSLOTS
	CapSetTSSAddr         = C.KVM_CAP_SET_TSS_ADDR
	CapSetIdentityMapAddr = C.KVM_CAP_SET_IDENTITY_MAP_ADDR
	CapGetTSCKHz          = C.KVM_CAP_GET_TSC_KHZ
	CapKVMClockCtrl       = C.KVM_CAP_KVMCLOCK_CTRL
	CapGetMSRFeatures     = C.KVM_CAP_GET_MSR_FEATURES
	CapHaltPoll           = C.KVM_CAP_HALT_POLL
	CapBusLockExit        = C.KVM_CAP_X86_BUS_LOCK_EXIT
	CapNotifyVMExit       = C.KVM_CAP_X86_NOTIFY_VMEXIT
)

// Exit reasons.
const (
	ExitUnknown       = C.KVM_EXIT_UNKNOWN
	ExitException     = C.KVM_EXIT_EXCEPTION
	ExitIO            = C.KVM_EXIT_IO
	ExitHLT           = C.KVM_EXIT_HLT
	ExitMMIO          = C.KVM_EXIT_MMIO
	ExitShutdown      = C.KVM_EXIT_SHUTDOWN
	ExitFailEntry     = C.KVM_EXIT_FAIL_ENTRY
	ExitIntr          = C.KVM_EXIT_INTR
	ExitInternalError = C.KVM_EXIT_INTERNAL_ERROR
	ExitSystemEvent   = C.KVM_EXIT_SYSTEM_EVENT
	ExitBusLock       = C.KVM_EXIT_X86_BUS_LOCK
	ExitNotify        = C.KVM_EXIT_NOTIFY
)

// Flags and numbers.
const (
	apiVersion           = C.KVM_API_VERSION
	ioeventfdDatamatch   = C.KVM_IOEVENTFD_FLAG_DATAMATCH
	ioDirectionOut       = C.KVM_EXIT_IO_OUT
	clockRealtime        = C.KVM_CLOCK_REALTIME
	clockTSCStable       = C.KVM_CLOCK_TSC_STABLE
	clockHostTSC         = C.KVM_CLOCK_HOST_TSC
	IRQChipPICMaster     = C.KVM_IRQCHIP_PIC_MASTER
	IRQChipPICSlave      = C.KVM_IRQCHIP_PIC_SLAVE
	IRQChipIOAPIC        = C.KVM_IRQCHIP_IOAPIC
	MPStateRunnable      = C.KVM_MP_STATE_RUNNABLE
	MPStateUninitialized = C.KVM_MP_STATE_UNINITIALIZED
	MPStateHalted        = C.KVM_MP_STATE_HALTED
	EventNMIPending      = C.KVM_VCPUEVENT_VALID_NMI_PENDING
	EventSIPIVector      = C.KVM_VCPUEVENT_VALID_SIPI_VECTOR
	EventShadow          = C.KVM_VCPUEVENT_VALID_SHADOW
	EventSMM             = C.KVM_VCPUEVENT_VALID_SMM
	BusLockExit          = C.KVM_BUS_LOCK_DETECTION_EXIT
	NotifyEnabled        = C.KVM_X86_NOTIFY_VMEXIT_ENABLED
	NotifyUser           = C.KVM_X86_NOTIFY_VMEXIT_USER
	NotifyContextInvalid = C.KVM_NOTIFY_CONTEXT_INVALID
	runBusLock           = C.KVM_RUN_X86_BUS_LOCK
)
