package hub

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// startDebian starts Debian's registry with its data in a directory, and returns its address and a function that
// kills it.
func startDebian(t *testing.T, dir, address string) (host string, kill func()) {
	t.Helper()
	program, err := exec.LookPath("docker-registry")
	if err != nil {
		t.Skip("docker-registry is not installed")
	}
	if address == "" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		address = l.Addr().String()
		l.Close()
	}
	config := filepath.Join(dir, "config.yml")
	text := fmt.Sprintf("version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}}\n"+
		"http: {addr: %q}\n", filepath.Join(dir, "data"), address)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "serve", config)
	cmd.Env = append(os.Environ(), "OTEL_TRACES_EXPORTER=none")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := false
	kill = func() {
		if !done {
			cmd.Process.Kill()
			cmd.Wait()
			done = true
		}
	}
	t.Cleanup(kill)
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		resp, err := http.Get("http://" + address + "/v2/")
		if err == nil {
			resp.Body.Close()
			return address, kill
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// The test uses Debian's registry. A family of snapshots is pushed to it, and the family's blobs
// are mounted in another repository. If the registry is killed, a push fails, and the next push to
// the restarted registry sends only the remaining blobs. skopeo reads snapshots that forkd has
// pushed, and forkd pulls snapshots that skopeo has pushed.
func TestDebianRegistry(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	dir := t.TempDir()
	address, kill := startDebian(t, dir, "")
	a, b := newHost(t).hasty(), newHost(t).hasty()
	a.noise(t, "parent")
	a.make(t, "child", "parent", 10, 'c')
	pushed := 0
	to := remoteOf(t, address+"/team/py:1")
	_, err := a.Push(t.Context(), "ann", "parent", to, false, func(p Progress) {
		if p.State == Pushed && pushed == 0 {
			pushed++
			kill()
		}
	})
	if err == nil {
		t.Fatal("a push to a killed registry has succeeded")
	}
	_, kill = startDebian(t, dir, address)
	if _, err := b.Find(t.Context(), "ann", to); err == nil {
		t.Error("the interrupted push has left a tag")
	}
	first := a.push(t, "parent", address+"/team/py:1")
	if first.Moved >= once(first.Artifact) {
		t.Errorf("the second try sent %d bytes of %d", first.Moved, once(first.Artifact))
	}
	second := a.push(t, "child", address+"/team/py:2")
	mounted := a.push(t, "child", address+"/elsewhere/py:2")
	if second.Moved > second.Bytes()/2 || mounted.Moved != 0 {
		t.Errorf("the family moved %d bytes of %d, and %d to another repository", second.Moved, second.Bytes(), mounted.Moved)
	}
	b.pull(t, "", address+"/team/py:1")
	got := b.pull(t, "", address+"/elsewhere/py:2")
	b.check(t, "child", map[int64]byte{2: 'p', 10: 'c'})
	if got.Moved > got.Bytes()/2 || got.Digest() != second.Digest() {
		t.Errorf("%d bytes of %d, %s", got.Moved, got.Bytes(), got.Digest())
	}
	if _, err := exec.LookPath("skopeo"); err != nil {
		t.Skip("skopeo is not installed")
	}
	archive := filepath.Join(dir, "carried.tar")
	for _, args := range [][]string{
		{"copy", "--src-tls-verify=false", "docker://" + address + "/team/py:1", "oci-archive:" + archive},
		{"copy", "--dest-tls-verify=false", "oci-archive:" + archive, "docker://" + address + "/carried/py:3"},
	} {
		if out, err := exec.Command("skopeo", args...).CombinedOutput(); err != nil {
			t.Fatalf("skopeo %v: %v\n%s", args, err, out)
		}
	}
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.unpack(t, "unpacked", p); err != nil {
		t.Fatal(err)
	}
	carried := b.pull(t, "carried", address+"/carried/py:3")
	b.check(t, "carried", map[int64]byte{2: 'p'})
	if carried.Digest() != first.Digest() {
		t.Errorf("skopeo has changed the digest to %s", carried.Digest())
	}
}

// A registry that is killed while it stores a blob may leave an empty link to the blob. From then on it answers
// requests for this blob with status 500. The next push sends the blob again, which mends the registry.
func TestPushMendsARegistry(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	dir := t.TempDir()
	address, kill := startDebian(t, dir, "")
	a, b := newHost(t).hasty(), newHost(t).hasty()
	a.make(t, "parent", "", 2, 'p')
	a.push(t, "parent", address+"/team/py:1")
	kill()
	links, err := filepath.Glob(dir + "/data/docker/registry/v2/repositories/team/py/_layers/sha256/*/link")
	if err != nil || len(links) < 2 {
		t.Fatal(links, err)
	}
	for _, link := range links {
		if err := os.Truncate(link, 0); err != nil {
			t.Fatal(err)
		}
	}
	startDebian(t, dir, address)
	var failed *RegistryError
	if _, err := b.Pull(t.Context(), "ann", "", remoteOf(t, address+"/team/py:1"), ignore); !errors.As(err, &failed) ||
		failed.Status != http.StatusInternalServerError {
		t.Errorf("a pull from the damaged registry: %v", err)
	}
	if sent := a.push(t, "parent", address+"/team/py:1"); sent.Moved != once(sent.Artifact) {
		t.Errorf("%d bytes of %d", sent.Moved, sent.Bytes())
	}
	b.pull(t, "", address+"/team/py:1")
	b.check(t, "parent", map[int64]byte{2: 'p'})
}
