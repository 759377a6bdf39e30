package hub

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/forkd/forkd/internal/sigstore"
)

// cosign verifies signatures that forkd has made, and forkd verifies signatures that cosign has
// made. Each program signs with a key that the other program has made, in registries with and
// without the API of referrers.
func TestCosign(t *testing.T) {
	program, err := exec.LookPath("cosign")
	if err != nil {
		t.Skip("cosign is not installed")
	}
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	for api, start := range map[string]func(*testing.T) *served{"referrers": serveReferrers, "tags": serve} {
		t.Run(api, func(t *testing.T) { exchange(t, program, start(t)) })
	}
}

func exchange(t *testing.T, program string, s *served) {
	const password = "secret"
	dir := t.TempDir()
	cosign := func(ok bool, args ...string) {
		t.Helper()
		cmd := exec.Command(program, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "HOME="+dir, "COSIGN_PASSWORD="+password, "COSIGN_YES=true")
		if out, err := cmd.CombinedOutput(); (err == nil) != ok {
			t.Errorf("cosign %q: %v\n%s", args, err, out)
		}
	}
	write := func(name string, p []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), p, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ann := newKey(t)
	private, err := ann.Seal([]byte(password))
	if err != nil {
		t.Fatal(err)
	}
	write("ann.key", private)
	write("ann.pub", ann.Public().PEM())
	write("eve.pub", newKey(t).Public().PEM())
	cosign(true, "generate-key-pair")
	text, err := os.ReadFile(filepath.Join(dir, "cosign.key"))
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := sigstore.OpenPrivateKey(text, []byte(password))
	if err != nil {
		t.Fatal(err)
	}
	a := newHost(t).hasty()
	a.make(t, "ours", "", 2, 'o')
	a.make(t, "theirs", "", 3, 't')
	ours, foreign := a.push(t, "ours", s.host+"/team/ours:1"), a.push(t, "theirs", s.host+"/team/theirs:1")
	verify := func(ok bool, key, ref string) {
		t.Helper()
		cosign(ok, "verify", "--key", key, "--insecure-ignore-tlog", "--allow-http-registry", s.host+ref)
	}
	verify(false, "ann.pub", "/team/ours:1")
	for _, k := range []*sigstore.PrivateKey{ann, theirs} {
		bundle := bundleFor(t, k, ours.Digest())
		if _, err := a.Sign(t.Context(), "ann", remoteOf(t, s.host+"/team/ours:1"), bundle); err != nil {
			t.Fatal(err)
		}
	}
	verify(true, "ann.pub", "/team/ours:1")
	verify(true, "cosign.pub", "/team/ours:1")
	verify(false, "eve.pub", "/team/ours:1")
	verify(false, "ann.pub", "/team/theirs:1")

	cosign(true, "sign", "--key", "ann.key", "--use-signing-config=false", "--tlog-upload=false", "--allow-http-registry",
		s.host+"/team/theirs@"+foreign.Digest().String())
	b := newHost(t).hasty().trusting(t, ann)
	if got := mustPull(t, b, strictly(t, s.host+"/team/theirs:1")); got.Verdict.Key.Name != "ann" {
		t.Errorf("%+v", got.Verdict)
	}
	c := newHost(t).hasty().trusting(t, theirs)
	if _, err := c.Pull(t.Context(), "ann", "", strictly(t, s.host+"/team/theirs:1"), ignore); kindOf(err) != Unknown {
		t.Error(err)
	}
	if got := mustPull(t, c, strictly(t, s.host+"/team/ours:1")); got.Verdict.Key.PublicKey.ID() != theirs.Public().ID() {
		t.Errorf("%+v", got.Verdict)
	}
}
