package integration_test

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/sigstore"
)

// travelling starts a daemon with directories of its own in dir, bakes a small parent there, and
// makes a snapshot with the given name. The snapshot is a branch of a child that has data in its
// memory, a note on its disk and a running process. The parent is small because the size of the
// snapshot determines most of a test's time.
func (f *fixture) travelling(t *testing.T, dir, name string, opts ...option) *daemon {
	t.Helper()
	d := f.start(t, append(opts, withState(filepath.Join(dir, "as")), withRAM(filepath.Join(dir, "am")), withPool(0))...)
	if err := d.bake(t, client.BakeRequest{Tag: "bare", Kernel: f.kernel.VMLinux, Initrd: f.kernel.Initrd, MemSizeMiB: 128,
		Rootfs: filepath.Join(f.assets.Images["base"], "rootfs.ext4")}); err != nil {
		t.Fatal(err)
	}
	box := d.forkOf(t, "bare", 1)[0]
	d.sh(t, box.ID, "seq 100000 >/dev/shm/numbers; echo "+name+" >/root/note; "+startTicks+" sleep 0.5")
	d.branchOf(t, box.ID, name, "live")
	d.kill(t, box)
	return d
}

// hasTravelled forks the snapshot that was made by travelling, and checks the children.
func (d *daemon) hasTravelled(t *testing.T, name string) {
	t.Helper()
	for _, child := range d.forkOf(t, name, 2) {
		d.hasContent(t, child, name)
		d.kill(t, child)
	}
}

// hasContent checks a sandbox that was made by travelling, or a child of its snapshot.
func (d *daemon) hasContent(t *testing.T, box client.Sandbox, name string) {
	t.Helper()
	if got := d.sh(t, box.ID, "wc -l </dev/shm/numbers; tail -n 1 /dev/shm/numbers"); got != "100000\n100000\n" {
		t.Errorf("the sandbox has %s in its memory", got)
	}
	if got := d.sh(t, box.ID, ticksAndNote); got != name+"\n" {
		t.Errorf("the sandbox has %q on its disk", got)
	}
}

// TestSnapshotsTravel packs and signs a branch of a sandbox, unpacks it at another daemon that
// trusts the key, and forks it there. The child has the content of the sandbox's memory and disk.
func TestSnapshotsTravel(t *testing.T) {
	f := open(t)
	dir := filepath.Join(f.root, "hub")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	a := f.travelling(t, dir, "travel")
	file := filepath.Join(dir, "travel.tar")
	pack(t, a, "travel", file)
	a.stop(t)

	keys := filepath.Join(dir, "keys")
	signature := signed(t, file, keys)
	b := f.start(t, withArgs("--trusted-keys", keys), withState(filepath.Join(dir, "s")),
		withRun(filepath.Join(dir, "r")), withRAM(filepath.Join(dir, "m")))
	defer b.stop(t) // before its files are removed
	// unpack opens the archive each time, because package http may read it even after the answer.
	unpack := func(limit time.Duration, o client.UnpackOptions) (client.HubResult, error) {
		archive, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		return b.UnpackSnapshot(b.ctx(t, limit), archive, o, nil) // package http closes the archive
	}
	var refused *client.Error
	if _, err := unpack(quietLimit, client.UnpackOptions{}); !errors.As(err, &refused) || refused.Code != "not_signed" {
		t.Errorf("without a signature: %v", err)
	}
	got, err := unpack(bakeLimit, client.UnpackOptions{Signature: signature})
	if err != nil {
		t.Fatal(err)
	}
	if got.SignedBy != "ann" {
		t.Errorf("signed by %q", got.SignedBy)
	}
	t.Logf("%d MiB were unpacked in %.0f ms", got.Bytes>>20, got.MS)
	if err := b.VerifySnapshot(b.ctx(t, bakeLimit), "travel"); err != nil {
		t.Error(err)
	}
	b.hasTravelled(t, "travel")
}

// TestSnapshotsTravelBetweenDaemons pulls a branch of a sandbox from another daemon on the same
// host, and forks it. The child has the content of the sandbox's memory and disk. Then the sandbox itself
// moves to that daemon, and its programs continue there.
func TestSnapshotsTravelBetweenDaemons(t *testing.T) {
	f := open(t)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(f.root, "next")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	a := f.travelling(t, dir, "journey", withArgs("--node", "a", "--bind", at, "--socket",
		filepath.Join(f.root, "r", "forkd.sock")))
	defer a.stop(t) // before its files are removed
	b := f.start(t, withArgs("--node", "b"), withState(filepath.Join(dir, "s")), withRun(filepath.Join(dir, "r")),
		withRAM(filepath.Join(dir, "m")))
	defer b.stop(t) // before its files are removed
	req := client.PullRequest{Reference: at + "/journey:latest"}
	var refused *client.Error
	if _, err := b.PullSnapshot(b.ctx(t, bakeLimit), req, nil); !errors.As(err, &refused) || refused.Code != "not_signed" {
		t.Errorf("without a signature: %v", err)
	}
	req.Trust = "off"
	got, err := b.PullSnapshot(b.ctx(t, bakeLimit), req, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d MiB were pulled in %.0f ms", got.Moved>>20, got.MS) // internal/host/hub verifies what was pulled
	b.hasTravelled(t, "journey")

	box := a.forkOf(t, "journey", 1)[0]
	moved, err := client.Move(b.ctx(t, bakeLimit), box.ID, client.MoveHost{Client: a.Client},
		client.MoveHost{Client: b.Client, Node: "b"}, func(string) (string, error) { return at, nil })
	if err != nil || moved.State != "running" {
		t.Fatal(moved, err)
	}
	b.hasContent(t, box, "journey")
	if _, err := a.Sandbox(a.ctx(t, quietLimit), box.ID); !errors.Is(err, client.ErrSandboxMoved) {
		t.Errorf("the first daemon says: %v", err)
	}
	b.kill(t, box)
}

// signed makes the key ann, writes the public key to a directory, and returns the signature of an archive.
func signed(t *testing.T, archive, dir string) []byte {
	t.Helper()
	key, err := sigstore.NewPrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "ann.pub"), key.Public().PEM(), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for in := tar.NewReader(f); ; {
		h, err := in.Next()
		if err != nil {
			t.Fatal(err)
		}
		if h.Name != "index.json" {
			continue
		}
		var index struct{ Manifests []struct{ Digest string } }
		if err := json.NewDecoder(in).Decode(&index); err != nil {
			t.Fatal(err)
		}
		bundle, err := sigstore.Sign(key, index.Manifests[0].Digest)
		if err != nil {
			t.Fatal(err)
		}
		return bundle
	}
}

// pack writes the archive of a snapshot to a file.
func pack(t *testing.T, d *daemon, tag, file string) {
	t.Helper()
	archive, err := d.PackSnapshot(d.ctx(t, bakeLimit), tag)
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	out, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(out, archive)
	if err := errors.Join(err, out.Close()); err != nil {
		t.Fatal(err)
	}
	t.Logf("the archive has %d MiB", n>>20)
}
