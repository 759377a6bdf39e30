package hub

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	ociregistry "github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"
	oci "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/sigstore"
)

// serveReferrers is like serve, for a registry with the API of referrers.
func serveReferrers(t *testing.T) *served {
	t.Helper()
	s := &served{}
	inner := ociregistry.New(ociregistry.Logger(log.New(io.Discard, "", 0)), ociregistry.WithReferrersSupport(true))
	s.Server = httptest.NewServer(s.handler(inner))
	t.Cleanup(s.Close)
	s.host = strings.TrimPrefix(s.URL, "http://")
	return s
}

func newKey(t *testing.T) *sigstore.PrivateKey {
	t.Helper()
	k, err := sigstore.NewPrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// trusting configures a host to require signatures by the given key, whose name is ann.
func (h *host) trusting(t *testing.T, k *sigstore.PrivateKey) *host {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil { // whatever the umask is
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ann.pub"), k.Public().PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	h.cfg.Trust = Trust{Keys: dir}
	return h
}

func bundleFor(t *testing.T, k *sigstore.PrivateKey, d digest.Digest) []byte {
	t.Helper()
	b, err := sigstore.Sign(k, d.String())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// strictly is like remoteOf, but uses the daemon's policy.
func strictly(t *testing.T, reference string) Remote { return remoteOf(t, reference).Under("") }

// plant attaches any bytes as a signature of a digest, like an attacker with write access to the repository.
func (h *host) plant(t *testing.T, reference string, d digest.Digest, bundle []byte) {
	t.Helper()
	r := remoteOf(t, reference)
	c, err := h.dial(t.Context(), r, r.ref.Context().Scope("push,pull"))
	if err != nil {
		t.Fatal(err)
	}
	subject := oci.Descriptor{MediaType: oci.MediaTypeImageManifest, Digest: d, Size: 1}
	if err := c.attach(t.Context(), r.ref.Context(), subject, bundle); err != nil {
		t.Fatal(err)
	}
}

// kindOf returns the kind of a TrustError, or -1.
func kindOf(err error) TrustKind {
	if e := (*TrustError)(nil); errors.As(err, &e) {
		return e.Kind
	}
	return -1
}

// fetchedLayers reports whether the log of a registry has a request for a file of a snapshot.
func fetchedLayers(log []string, sent Sent) bool {
	for _, b := range sent.Blobs {
		if slices.Contains(log, "GET /v2/team/py/blobs/"+b.Digest.String()) {
			return true
		}
	}
	return false
}

// In every attack, a snapshot that no trusted key vouches for is refused before any of its files is
// fetched.
func TestSignatureAttacks(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	for api, start := range map[string]func(*testing.T) *served{"referrers": serveReferrers, "tags": serve} {
		t.Run(api, func(t *testing.T) { attackSignatures(t, start) })
	}
}

func attackSignatures(t *testing.T, start func(*testing.T) *served) {
	ann, eve := newKey(t), newKey(t)
	a := newHost(t).hasty()
	a.make(t, "parent", "", 2, 'p')
	a.make(t, "other", "", 3, 'o')
	flip := func(p []byte) []byte { // changes the signature, which is the last base64 text
		i := bytes.LastIndex(p, []byte(`"sig":"`)) + len(`"sig":"`) + 20
		if p[i] == 'a' {
			p[i] = 'b'
		} else {
			p[i] = 'a'
		}
		return p
	}
	for name, c := range map[string]struct {
		bundles func(sent, other digest.Digest) [][]byte
		kind    TrustKind
		want    string
	}{
		"no signature": {func(_, _ digest.Digest) [][]byte { return nil }, Unsigned, "has no signature"},
		"another key": {func(d, _ digest.Digest) [][]byte { return [][]byte{bundleFor(t, eve, d)} }, Unknown,
			"another key"},
		"of another snapshot": {func(_, o digest.Digest) [][]byte { return [][]byte{bundleFor(t, ann, o)} }, Bad,
			"another digest"},
		"damaged": {func(d, _ digest.Digest) [][]byte { return [][]byte{flip(bundleFor(t, ann, d))} }, Bad, "is wrong"},
		"no bundle": {func(_, _ digest.Digest) [][]byte { return [][]byte{[]byte("hello")} }, Bad,
			"no sigstore bundle"},
		"huge": {func(d, _ digest.Digest) [][]byte {
			return [][]byte{append(bundleFor(t, ann, d), bytes.Repeat([]byte(" "), sigstore.MaxBundle)...)}
		}, Bad, "size is"},
		"two, none good": {func(d, o digest.Digest) [][]byte { return [][]byte{bundleFor(t, eve, d), bundleFor(t, ann, o)} },
			Unknown, "another digest"},
		"two, one good": {func(d, o digest.Digest) [][]byte {
			return [][]byte{flip(bundleFor(t, ann, d)), bundleFor(t, ann, d), bundleFor(t, eve, d)}
		}, -1, ""},
		"one good": {func(d, _ digest.Digest) [][]byte { return [][]byte{bundleFor(t, ann, d)} }, -1, ""},
	} {
		s, b := start(t), newHost(t).hasty().trusting(t, ann)
		sent, other := a.push(t, "parent", s.host+"/team/py:1"), a.push(t, "other", s.host+"/team/py:2")
		for _, p := range c.bundles(sent.Digest(), other.Digest()) {
			a.plant(t, s.host+"/team/py:1", sent.Digest(), p)
		}
		s.set(nil)
		got, err := b.Pull(t.Context(), "ann", "", strictly(t, s.host+"/team/py:1"), ignore)
		log, _, _ := s.set(nil)
		if c.kind == -1 {
			if err != nil || got.Verdict.Key.Name != "ann" || got.Verdict.Problem != nil {
				t.Errorf("%s: %+v, %v", name, got.Verdict, err)
			}
			continue
		}
		if kindOf(err) != c.kind || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 1000 {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if fetchedLayers(log, sent) || slices.Contains(log, "GET /v2/team/py/blobs/"+digest.FromBytes(sent.Config).String()) {
			t.Errorf("%s: files were fetched: %q", name, log)
		}
		b.isClean(t, name, 0)
		o, err := b.Find(t.Context(), "ann", strictly(t, s.host+"/team/py:1"))
		if err != nil || kindOf(o.Verdict.Problem) != c.kind || o.Snapshot.Tag != "parent" {
			t.Errorf("%s: described as %+v, %v", name, o, err)
		}
		warned, err := b.Pull(t.Context(), "ann", "", remoteOf(t, s.host+"/team/py:1").Under(Warn), ignore)
		if err != nil || kindOf(warned.Verdict.Problem) != c.kind || warned.Verdict.Key.PublicKey != nil {
			t.Errorf("%s: with a warning only: %+v, %v", name, warned.Verdict, err)
		}
	}
}

// If a registry lies about signatures, a pull fails. If the registry itself fails, the pull fails
// even with the policy warn.
func TestRegistryLiesAboutSignatures(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	ann := newKey(t)
	s, a, b := serveReferrers(t), newHost(t).hasty(), newHost(t).hasty().trusting(t, ann)
	a.make(t, "parent", "", 2, 'p')
	sent := a.push(t, "parent", s.host+"/team/py:1")
	bundle := bundleFor(t, ann, sent.Digest())
	if _, err := a.Sign(t.Context(), "ann", remoteOf(t, s.host+"/team/py:1"), bundle); err != nil {
		t.Fatal(err)
	}
	answer := func(part string, f func(p []byte) []byte) func(http.ResponseWriter, *http.Request, http.Handler) {
		return func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
			if !strings.Contains(r.URL.Path, part) || r.Method != http.MethodGet {
				inner.ServeHTTP(w, r)
				return
			}
			rec := &recorder{header: make(http.Header)}
			inner.ServeHTTP(rec, r)
			w.Write(f(rec.body.Bytes()))
		}
	}
	index := func(f func(x *oci.Index)) func([]byte) []byte {
		return func(p []byte) []byte {
			var x oci.Index
			if err := json.Unmarshal(p, &x); err != nil {
				t.Error(err)
			}
			f(&x)
			p, err := json.Marshal(x)
			if err != nil {
				t.Error(err)
			}
			return p
		}
	}
	blob := digest.FromBytes(bundle).Encoded()
	const list = "/referrers/"
	// These texts stand for the answer of a server in the local network to a redirected request.
	const secretText, secretNumber = "correct-horse", "4242424242424242"
	instead := func(text string) func([]byte) []byte { return func([]byte) []byte { return []byte(text) } }
	for name, c := range map[string]struct {
		around func(http.ResponseWriter, *http.Request, http.Handler)
		want   string
		fails  bool // whether the pull fails even with the policy warn
	}{
		"a longer bundle":  {answer(blob, func(p []byte) []byte { return append(p, ' ') }), "longer than", false},
		"a shorter bundle": {answer(blob, func(p []byte) []byte { return p[1:] }), "differs from its digest", false},
		"another bundle": {answer(blob, func(p []byte) []byte { return bytes.Replace(p, []byte("a"), []byte("b"), 1) }),
			"differs from its digest", false},
		"a lying size": {answer(list, index(func(x *oci.Index) { x.Manifests[0].Size-- })), "longer than", false},
		"a huge size":  {answer(list, index(func(x *oci.Index) { x.Manifests[0].Size = 1 << 40 })), "size is", false},
		"a strange digest": {answer(list, index(func(x *oci.Index) { x.Manifests[0].Digest = "sha256:../../x" })),
			"its digest is", false},
		"a foreign digest": {answer(list, instead(`{"manifests":[{"digest":"`+secretText+`","size":1}]}`)),
			"its digest is", false},
		"a foreign size": {answer(list, instead(`{"manifests":[{"digest":"`+sent.Digest().String()+`","size":`+
			secretNumber+`}]}`)), "size is", false},
		"a foreign list": {answer(list, instead(`{"manifests":`+secretNumber+`}`)), "cannot be read", true},
		"a lost signature": {func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
			if strings.Contains(r.URL.Path, blob) {
				http.NotFound(w, r)
				return
			}
			inner.ServeHTTP(w, r)
		}, "has lost it", false},
		"a hidden signature": {answer(list, index(func(x *oci.Index) { x.Manifests = nil })), "has no signature", false},
		"a snapshot as its signature": {answer(list, index(func(x *oci.Index) {
			x.Manifests[0].Digest, x.Manifests[0].Size = sent.Digest(), int64(len(sent.Manifest))
		})), "has no signature", false},
		"too many signatures": {answer(list, index(func(x *oci.Index) {
			x.Manifests = slices.Repeat(x.Manifests, maxBundles+1)
		})), "more than 32", true},
		"an endless list": {answer(list, func([]byte) []byte { return make([]byte, maxReferrers+1) }), "more than", true},
		"no list":         {answer(list, func([]byte) []byte { return []byte("<html>") }), "cannot be read", true},
		"a failure": {func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
			if strings.Contains(r.URL.Path, list) {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			inner.ServeHTTP(w, r)
		}, "500", true},
		"a refusal": {func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
			if strings.Contains(r.URL.Path, list) {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			inner.ServeHTTP(w, r)
		}, "403", true},
	} {
		s.set(c.around)
		_, err := b.Pull(t.Context(), "ann", "", strictly(t, s.host+"/team/py:1"), ignore)
		if err == nil || !strings.Contains(err.Error(), c.want) || (kindOf(err) == -1) != c.fails || len(err.Error()) > 1000 {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if text := fmt.Sprint(err); strings.Contains(text, secretText) || strings.Contains(text, secretNumber) {
			t.Errorf("%s: the error quotes the answer: %s", name, text)
		}
		if log, _, _ := s.set(c.around); fetchedLayers(log, sent) {
			t.Errorf("%s: files were fetched", name)
		}
		b.isClean(t, name, 0)
		_, err = b.Pull(t.Context(), "ann", "", remoteOf(t, s.host+"/team/py:1").Under(Warn), ignore)
		if (err != nil) != c.fails {
			t.Errorf("%s, with a warning only: %v", name, err)
		}
		if err == nil {
			b.remove(t, "parent")
		}
	}
	s.set(nil)
	if got := mustPull(t, b, strictly(t, s.host+"/team/py:1")); got.Verdict.Key.Name != "ann" {
		t.Errorf("%+v", got.Verdict)
	}
}

func mustPull(t *testing.T, h *host, r Remote) Pulled {
	t.Helper()
	p, err := h.Pull(t.Context(), "ann", "", r, ignore)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (h *host) remove(t *testing.T, tag string) {
	t.Helper()
	if _, err := h.store.Delete(tag, store.DeleteSingle); err != nil {
		t.Fatal(err)
	}
}

// A tag can be moved to another snapshot. An unsigned snapshot is refused. An older snapshot that the same key has
// signed is accepted: only a reference with the digest excludes it.
func TestMovedTags(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	ann := newKey(t)
	s, a := serveReferrers(t), newHost(t).hasty()
	a.make(t, "old", "", 2, 'o')
	a.make(t, "new", "", 3, 'n')
	a.make(t, "evil", "", 4, 'e')
	sign := func(sent Sent) {
		if _, err := a.Sign(t.Context(), "ann", remoteOf(t, s.host+"/team/py@"+sent.Digest().String()),
			bundleFor(t, ann, sent.Digest())); err != nil {
			t.Fatal(err)
		}
	}
	old, latest := a.push(t, "old", s.host+"/team/py:0"), a.push(t, "new", s.host+"/team/py:1")
	sign(old)
	sign(latest)
	pinned := strictly(t, s.host+"/team/py@"+latest.Digest().String())
	evil := a.push(t, "evil", s.host+"/team/py:1")
	b := newHost(t).hasty().trusting(t, ann)
	if _, err := b.Pull(t.Context(), "ann", "", strictly(t, s.host+"/team/py:1"), ignore); kindOf(err) != Unsigned {
		t.Error("an unsigned snapshot under a signed tag:", err)
	}
	a.push(t, "old", s.host+"/team/py:1") // moves the tag back to the older snapshot
	if got := mustPull(t, b, strictly(t, s.host+"/team/py:1")); got.Digest() != old.Digest() {
		t.Errorf("%s, want the older %s: docs/threat-model.md says so", got.Digest(), old.Digest())
	}
	s.set(func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
		if strings.Contains(r.URL.Path, "/manifests/") {
			r.URL.Path = strings.Replace(r.URL.Path, latest.Digest().String(), old.Digest().String(), 1)
		}
		inner.ServeHTTP(w, r)
	})
	if _, err := b.Pull(t.Context(), "ann", "", pinned, ignore); err == nil ||
		!strings.Contains(err.Error(), "the manifest has the digest") {
		t.Error("another signed snapshot for a digest:", err)
	}
	s.set(nil)
	if got := mustPull(t, b, pinned); got.Digest() != latest.Digest() {
		t.Errorf("%s, want %s", got.Digest(), latest.Digest())
	}
	// Sign refuses a bundle for another digest.
	var field *invalid.Error
	if _, err := a.Sign(t.Context(), "ann", remoteOf(t, s.host+"/team/py@"+evil.Digest().String()),
		bundleFor(t, ann, latest.Digest())); !errors.As(err, &field) || field.Field != "bundle" {
		t.Error(err)
	}
}

// Without a usable key, no snapshot is trusted. A policy in a request replaces the daemon's policy.
func TestTrustedKeys(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	ann := newKey(t)
	s, a, b := serveReferrers(t), newHost(t).hasty(), newHost(t).hasty()
	a.make(t, "parent", "", 2, 'p')
	sent := a.push(t, "parent", s.host+"/team/py:1")
	at := strictly(t, s.host+"/team/py:1")
	if _, err := a.Sign(t.Context(), "ann", at, bundleFor(t, ann, sent.Digest())); err != nil {
		t.Fatal(err)
	}
	pull := func() error { _, err := b.Pull(t.Context(), "ann", "", at, ignore); return err }
	if err := pull(); kindOf(err) != Unknown || !strings.Contains(err.Error(), "no key is trusted here") {
		t.Error("without keys:", err)
	}
	b.trusting(t, ann)
	file := filepath.Join(b.cfg.Trust.Keys, "ann.pub")
	if err := os.Chmod(file, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := pull(); kindOf(err) != Unknown || !strings.Contains(err.Error(), "another user can change") {
		t.Error("a key that others can change:", err)
	}
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	d, k, err := b.Verify(t.Context(), "ann", at, nil)
	if err != nil || d != sent.Digest() || k.Name != "ann" {
		t.Error(d, k, err)
	}
	eve := sigstore.TrustedKey{PublicKey: newKey(t).Public()}
	if _, _, err := b.Verify(t.Context(), "ann", at, []sigstore.TrustedKey{eve}); kindOf(err) != Unknown {
		t.Error("a wrong key:", err)
	}
	s.set(nil)
	if _, err := newHost(t).hasty().Pull(t.Context(), "ann", "", at.Under(Off), ignore); err != nil {
		t.Error(err)
	}
	if log, _, _ := s.set(nil); slices.ContainsFunc(log, func(r string) bool { return strings.Contains(r, "referrers") }) {
		t.Errorf("signatures were looked at: %q", log)
	}
	if err := pull(); err != nil {
		t.Error(err)
	}
}

// The signature of an archive is not in the archive. It is a separate argument of Receive.
func TestSignedArchives(t *testing.T) {
	ann, eve := newKey(t), newKey(t)
	a, b := newHost(t), newHost(t).trusting(t, ann)
	a.make(t, "parent", "", 2, 'p')
	a.make(t, "other", "", 3, 'o')
	archive := a.pack(t, "parent")
	d := func(archive []byte) digest.Digest {
		_, files := entries(t, archive)
		var x oci.Index
		if err := json.Unmarshal(files["index.json"], &x); err != nil {
			t.Fatal(err)
		}
		return x.Manifests[0].Digest
	}
	receive := func(policy Policy, signature []byte) (Verdict, error) {
		got, err := b.Receive(t.Context(), bytes.NewReader(archive), policy, signature)
		if err != nil {
			return Verdict{}, err
		}
		defer got.Close()
		_, err = b.Unpack(t.Context(), "ann", "", got, ignore)
		return got.Verdict, err
	}
	if _, err := b.Receive(t.Context(), nil, "", nil); kindOf(err) != Unsigned { // nothing is read
		t.Error("without a signature:", err)
	}
	for name, c := range map[string]struct {
		signature []byte
		kind      TrustKind
	}{
		"another key":        {bundleFor(t, eve, d(archive)), Unknown},
		"of another archive": {bundleFor(t, ann, d(a.pack(t, "other"))), Bad},
		"no bundle":          {[]byte("x"), Bad},
	} {
		if _, err := receive("", c.signature); kindOf(err) != c.kind {
			t.Errorf("%s: %v", name, err)
		}
		b.isClean(t, name, 0)
	}
	v, err := receive("", bundleFor(t, ann, d(archive)))
	if err != nil || v.Key.Name != "ann" {
		t.Error(v, err)
	}
	b.remove(t, "parent")
	if v, err := receive(Warn, nil); err != nil || kindOf(v.Problem) != Unsigned {
		t.Error(v, err)
	}
}
