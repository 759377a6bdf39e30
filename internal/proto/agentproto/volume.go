package agentproto

import "strconv"

// VolumeSerial returns the serial number of a guest's volume slot. The agent finds the block device
// of the slot by this number. The first slot has the number 0.
func VolumeSerial(slot int) string { return "vol" + strconv.Itoa(slot) }
