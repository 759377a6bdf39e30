package hub

import (
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"

	"github.com/forkd/forkd/internal/format/artifact"
)

// skopeo, a program for OCI artifacts, copies a packed snapshot to a registry and back. It leaves the
// list of hot frames behind.
func TestSkopeo(t *testing.T) {
	if _, err := exec.LookPath("skopeo"); err != nil {
		t.Skip("skopeo is not installed")
	}
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	a, b, dir := newHost(t), newHost(t), t.TempDir()
	a.make(t, "parent", "", 2, 'p')
	list, err := artifact.HotOf(map[digest.Digest][]int{digest.FromString("x"): {0}}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	a.keepHot(a.idOf(t, "parent"), list)
	packed, carried := filepath.Join(dir, "packed.tar"), filepath.Join(dir, "carried.tar")
	if err := os.WriteFile(packed, a.pack(t, "parent"), 0o600); err != nil {
		t.Fatal(err)
	}
	remote := "docker://" + strings.TrimPrefix(server.URL, "http://") + "/team/parent:1"
	for _, args := range [][]string{
		{"copy", "--dest-tls-verify=false", "oci-archive:" + packed, remote},
		{"copy", "--src-tls-verify=false", remote, "oci-archive:" + carried},
	} {
		if out, err := exec.Command("skopeo", args...).CombinedOutput(); err != nil {
			t.Fatalf("skopeo %v: %v\n%s", args, err, out)
		}
	}
	p, err := os.ReadFile(carried)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.unpack(t, "carried", p); err != nil {
		t.Fatal(err)
	}
	b.check(t, "carried", map[int64]byte{2: 'p'})
	if err := b.unpack(t, "packed", a.pack(t, "parent")); err != nil {
		t.Fatal(err)
	}
	for tag, want := range map[string]string{"packed": string(list), "carried": ""} {
		if got := b.hot.Of(b.idOf(t, tag)); string(got) != want {
			t.Errorf("%s has the list %q, want %q", tag, got, want)
		}
	}
}
