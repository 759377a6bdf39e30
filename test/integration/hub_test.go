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

// TestSnapshotsTravel packs and signs a branch of a sandbox, unpacks it at another daemon that
// trusts the key, and forks it there. The child has the content of the sandbox's memory and disk.
func TestSnapshotsTravel(t *testing.T) {
	f := load(t)
	a := f.start(t)
	box := a.fork(t, 1)[0]
	a.value(t, box.ID, "travels = [i * i for i in range(100000)]; len(travels)")
	a.sh(t, box.ID, "echo travels >/root/note")
	a.branchOf(t, box.ID, "travel", "live")
	a.kill(t, box)
	dir := filepath.Join(f.root, "hub")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "travel.tar")
	pack(t, a, "travel", file)
	if err := a.DeleteSnapshot(a.ctx(t, quietLimit), "travel", client.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	a.stop(t)

	keys := filepath.Join(dir, "keys")
	signature := signed(t, file, keys)
	b := f.start(t, withArgs("--trusted-keys", keys), withState(filepath.Join(dir, "s")),
		withRun(filepath.Join(dir, "r")), withRAM(filepath.Join(dir, "m")))
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
	for _, child := range b.forkOf(t, "travel", 2) {
		if got := b.value(t, child.ID, "travels[99999]"); got != "9999800001" {
			t.Errorf("the child has %s in its memory", got)
		}
		if got := b.sh(t, child.ID, "cat /root/note"); got != "travels\n" {
			t.Errorf("the child has %q on its disk", got)
		}
		b.kill(t, child)
	}
}

// TestSnapshotsTravelBetweenDaemons pulls a branch of a sandbox from another daemon on the same
// host, and forks it. The child has the content of the sandbox's memory and disk.
func TestSnapshotsTravelBetweenDaemons(t *testing.T) {
	f := load(t)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	a := f.start(t, withArgs("--bind", at, "--socket", filepath.Join(f.root, "r", "forkd.sock")))
	box := a.fork(t, 1)[0]
	a.value(t, box.ID, "travels = [i * i for i in range(100000)]; len(travels)")
	a.sh(t, box.ID, "echo travels >/root/note")
	a.branchOf(t, box.ID, "journey", "live")
	a.kill(t, box)
	defer func() {
		if err := a.DeleteSnapshot(a.ctx(t, quietLimit), "journey", client.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}()
	dir := filepath.Join(f.root, "next")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	b := f.start(t, withState(filepath.Join(dir, "s")), withRun(filepath.Join(dir, "r")), withRAM(filepath.Join(dir, "m")))
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
	for _, child := range b.forkOf(t, "journey", 2) {
		if got := b.value(t, child.ID, "travels[99999]"); got != "9999800001" {
			t.Errorf("the child has %s in its memory", got)
		}
		if got := b.sh(t, child.ID, "cat /root/note"); got != "travels\n" {
			t.Errorf("the child has %q on its disk", got)
		}
		b.kill(t, child)
	}
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
