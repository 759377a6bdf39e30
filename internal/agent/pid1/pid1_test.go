package pid1

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/agent/kmsg"
)

func TestParseCmdline(t *testing.T) {
	o, err := ParseCmdline("console=ttyS0 forkd.ro quiet forkd.hostname=web-1\n")
	if err != nil || !o.ReadOnly || o.Hostname != "web-1" {
		t.Fatalf("got %+v, %v", o, err)
	}
	if o, err := ParseCmdline("root=/dev/vda"); err != nil || o.ReadOnly || o.Hostname != defaultHostname {
		t.Fatalf("defaults: got %+v, %v", o, err)
	}
	for _, bad := range []string{"forkd.rw", "forkd.hostname="} {
		if _, err := ParseCmdline(bad); err == nil || !strings.Contains(err.Error(), strings.TrimSuffix(bad, "=")) {
			t.Errorf("ParseCmdline(%q): err = %v", bad, err)
		}
	}
}

func TestLoadModulesNamesTheMissingOne(t *testing.T) {
	log := kmsg.NewPlain(io.Discard)
	dir := t.TempDir()
	if err := loadModules(dir, log); err != nil {
		t.Fatalf("without an order file: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "order"), []byte("virtio_blk.ko\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := loadModules(dir, log); err == nil || !strings.Contains(err.Error(), "virtio_blk.ko") {
		t.Fatalf("err = %v", err)
	}
}

func TestReseedRefusesShortEntropy(t *testing.T) {
	id := &Identity{}
	if err := id.Reseed(make([]byte, 31)); err == nil {
		t.Fatal("31 bytes accepted")
	}
	if err := id.SetClock(0); err == nil {
		t.Fatal("time 0 accepted")
	}
}

func TestWaitForDeviceSeesAnExistingPath(t *testing.T) {
	u := uevents{fd: -1}
	if err := u.waitForDevice("/dev/null"); err != nil {
		t.Fatal(err)
	}
}
