package mmio

// Size is the length of a device's register window in bytes. The window consists of the registers
// and then 256 bytes of configuration space.
const Size = 0x200

// Register offsets (virtio 1.2 §4.2.2, table 4.1). All registers are 32 bits wide, except the
// configuration space.
const (
	regMagic             = 0x000
	regVersion           = 0x004
	regDeviceID          = 0x008
	regVendorID          = 0x00c
	regDeviceFeatures    = 0x010
	regDeviceFeaturesSel = 0x014
	regDriverFeatures    = 0x020
	regDriverFeaturesSel = 0x024
	regQueueSel          = 0x030
	regQueueSizeMax      = 0x034
	regQueueSize         = 0x038
	regQueueReady        = 0x044
	RegQueueNotify       = 0x050 // the machine puts KVM's ioeventfd at this register
	RegInterruptStatus   = 0x060 // loaded from Transport.InterruptStatus
	RegInterruptACK      = 0x064 // clears bits of Transport.InterruptStatus
	regStatus            = 0x070
	regQueueDescLow      = 0x080
	regQueueDescHigh     = 0x084
	regQueueDriverLow    = 0x090
	regQueueDriverHigh   = 0x094
	regQueueDeviceLow    = 0x0a0
	regQueueDeviceHigh   = 0x0a4
	regSHMLenLow         = 0x0b0
	regSHMLenHigh        = 0x0b4
	regSHMBaseLow        = 0x0b8
	regSHMBaseHigh       = 0x0bc
	regConfigGeneration  = 0x0fc
	regConfig            = 0x100
)

const (
	magic    = 0x74726976 // "virt"
	version  = 2
	vendorID = 0x646b7266 // "frkd"; virtio has no registry of vendor IDs
)

// Device status bits (virtio 1.2 §2.1).
const (
	statusAcknowledge = 1
	statusDriver      = 2
	statusDriverOK    = 4
	statusFeaturesOK  = 8
	statusNeedsReset  = 64
	statusFailed      = 128
)

// Interrupt reasons (virtio 1.2 §4.2.2, InterruptStatus).
const (
	interruptUsed   = 1
	interruptConfig = 2
)
