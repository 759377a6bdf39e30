package agentproto

import (
	"strings"
	"testing"
)

func TestVolumePaths(t *testing.T) {
	for _, p := range []string{"/data", "/srv/a b/ö", "/device", "/running/x",
		"/" + strings.Repeat("x", maxVolumePath-1)} {
		if err := CheckVolumePath(p); err != nil {
			t.Error(err)
		}
	}
	for _, p := range []string{"", "/", "data", "./data", "/data/", "/a//b", "/a/./b", "/a/../b", "/..", "/proc",
		"/proc/1", "/sys", "/sys/x", "/dev", "/dev/shm/x", "/run", "/run/forkd", "/a\nb", "/a\x00b", "/a\x7f", "/a\u0085b",
		"/" + strings.Repeat("x", maxVolumePath)} {
		if CheckVolumePath(p) == nil {
			t.Errorf("%.40q is a place for a volume", p)
		}
	}
}

func TestVolumeSerialFits(t *testing.T) {
	if s := VolumeSerial(MaxVolumeSlots - 1); s != "vol15" || len(s) > 20 { // virtio 1.2 §5.2.6 has room for 20 bytes
		t.Error(s)
	}
}
