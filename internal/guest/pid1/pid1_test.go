package pid1

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/guest/kmsg"
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

// Bytes that Linux has fetched in advance are dropped. dropFetched does not wait if the device has
// no data, and accepts that there is no device.
func TestDropFetched(t *testing.T) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ends[0])
	defer unix.Close(ends[1])
	for _, c := range []struct{ fetched, left int }{{0, 0}, {maxFetched / 2, 0}, {maxFetched + 5, 5}} {
		if _, err := unix.Write(ends[1], make([]byte, c.fetched)); err != nil {
			t.Fatal(err)
		}
		if err := dropFetched(ends[0]); err != nil {
			t.Fatal(err)
		}
		n, err := unix.Read(ends[0], make([]byte, 2*maxFetched))
		if c.left == 0 && err != unix.EAGAIN || c.left > 0 && n != c.left {
			t.Errorf("of %d bytes %d are left, %v; want %d", c.fetched, n, err, c.left)
		}
	}
	if err := dropFetched(-1); err != nil {
		t.Errorf("without a device: %v", err)
	}
}

func TestWaitForDeviceSeesAnExistingPath(t *testing.T) {
	u := uevents{fd: -1}
	if err := u.waitForDevice("/dev/null"); err != nil {
		t.Fatal(err)
	}
}
