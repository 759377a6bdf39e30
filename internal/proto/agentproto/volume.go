package agentproto

import (
	"fmt"
	"path"
	"strconv"
	"strings"
	"unicode"
)

// Volume is a volume that a guest mounts.
type Volume struct {
	Slot     int    `json:"slot"` // number of the volume slot that has the volume's disk; the first is 0
	Path     string `json:"path"` // see CheckVolumePath
	ReadOnly bool   `json:"read_only,omitempty"`
}

// MaxVolumeSlots bounds the slot numbers in requests: every number is below this bound. It is
// larger than vm.MaxVolumeSlots, the present bound on the slots of a machine.
const MaxVolumeSlots = 16

// VolumeSerial returns the serial number of a volume slot's block device. The agent finds the device
// by this number.
func VolumeSerial(slot int) string { return "vol" + strconv.Itoa(slot) }

// maxVolumePath bounds the length of a path in bytes. It is less than Linux's PATH_MAX, because the
// guest may have links in the path.
const maxVolumePath = 1024

// CheckVolumePath returns an error if it is not allowed to mount a volume at the path p in a guest.
// The path must be absolute and clean, and outside of the directories in which the kernel and the
// agent keep files.
func CheckVolumePath(p string) error {
	switch {
	case !path.IsAbs(p) || path.Clean(p) != p || p == "/":
		return fmt.Errorf("path %.200q: want an absolute path other than /, without '.', '..' and repeated slashes", p)
	case len(p) > maxVolumePath:
		return fmt.Errorf("path %.200q…: %d bytes, at most %d", p, len(p), maxVolumePath)
	case strings.ContainsFunc(p, unicode.IsControl):
		return fmt.Errorf("path %.200q: want no control characters", p)
	}
	for _, system := range []string{"/proc", "/sys", "/dev", "/run"} {
		if p == system || strings.HasPrefix(p, system+"/") {
			return fmt.Errorf("path %.200q: want a path outside of %s", p, system)
		}
	}
	return nil
}
