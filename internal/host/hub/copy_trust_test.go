package hub

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	oci "github.com/opencontainers/image-spec/specs-go/v1"
)

// The policy for the source is applied before any file of the snapshot is fetched. The copy gets
// all signatures for the snapshot, and no other signatures, whether or not the two registries have
// the API of referrers.
func TestCopyCarriesSignatures(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	ann, eve := newKey(t), newKey(t)
	a := newHost(t).hasty()
	a.make(t, "parent", "", 2, 'p')
	a.make(t, "other", "", 3, 'o')
	apis := map[string]func(*testing.T) *served{"referrers": serveReferrers, "tags": serve}
	for source, start := range apis {
		for target, startOther := range apis {
			name := source + " to " + target
			s, d, b := start(t), startOther(t), newHost(t).hasty().trusting(t, ann)
			sent, other := a.push(t, "parent", s.host+"/team/py:1"), a.push(t, "other", s.host+"/team/py:2")
			from, to := strictly(t, s.host+"/team/py:1"), strictly(t, d.host+"/team/py:1")
			refuse := func(kind TrustKind) {
				t.Helper()
				s.set(nil)
				_, err := b.Copy(t.Context(), "ann", from, to, ignore)
				if log, _, _ := s.set(nil); kindOf(err) != kind || fetchedLayers(log, sent) {
					t.Errorf("%s: %v after %q", name, err, log)
				}
				if log, _, _ := d.set(nil); len(log) != 0 {
					t.Errorf("%s: the target got %q", name, log)
				}
			}
			refuse(Unsigned)
			a.plant(t, s.host+"/team/py:1", sent.Digest(), bundleFor(t, eve, sent.Digest()))
			refuse(Unknown)
			a.plant(t, s.host+"/team/py:1", sent.Digest(), bundleFor(t, ann, sent.Digest()))
			a.plant(t, s.host+"/team/py:1", sent.Digest(), bundleFor(t, ann, other.Digest()))
			a.plant(t, s.host+"/team/py:1", sent.Digest(), []byte("hello"))
			for range 2 {
				got, err := b.Copy(t.Context(), "ann", from, to, ignore)
				if err != nil || got.Verdict.Key.Name != "ann" || got.Signatures != 1 {
					t.Fatalf("%s: %+v, %v", name, got, err)
				}
			}
			if got := mustPull(t, b, to); got.Verdict.Key.Name != "ann" {
				t.Errorf("%s: %+v", name, got.Verdict)
			}
			c, err := b.dial(t.Context(), to, to.ref.Context().Scope("pull"))
			if err != nil {
				t.Fatal(err)
			}
			if list, err := c.proofs(t.Context(), sent.Digest()); err != nil || len(list) != 1 {
				t.Errorf("%s: the target has %d signatures, %v", name, len(list), err)
			}
			warned, err := b.Copy(t.Context(), "ann", strictly(t, s.host+"/team/py:2").Under(Warn), to, ignore)
			if err != nil || kindOf(warned.Verdict.Problem) != Unsigned || warned.Signatures != 0 {
				t.Errorf("%s: %+v, %v", name, warned.Verdict, err)
			}
		}
	}
}

// A copy gets its tag only after its signatures. If the signatures cannot be read or written, no
// tag is written, even if the policy ignores signatures.
func TestCopyWithoutSignaturesFails(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	ann := newKey(t)
	s, a, b := serveReferrers(t), newHost(t).hasty(), newHost(t).hasty()
	a.make(t, "parent", "", 2, 'p')
	sent := a.push(t, "parent", s.host+"/team/py:1")
	a.plant(t, s.host+"/team/py:1", sent.Digest(), bundleFor(t, ann, sent.Digest()))
	from := remoteOf(t, s.host+"/team/py:1")
	var failed *RegistryError
	d := serveReferrers(t)
	s.set(func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
		if strings.Contains(r.URL.Path, "/referrers/") {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		inner.ServeHTTP(w, r)
	})
	if _, err := b.Copy(t.Context(), "ann", from, remoteOf(t, d.host+"/team/py:1"), ignore); !errors.As(err, &failed) ||
		failed.Registry != s.host {
		t.Error(err)
	}
	s.set(nil)
	d.set(func(w http.ResponseWriter, r *http.Request, inner http.Handler) {
		if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/sha256:") &&
			!strings.HasSuffix(r.URL.Path, sent.Digest().Encoded()) {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		inner.ServeHTTP(w, r)
	})
	if _, err := b.Copy(t.Context(), "ann", from, remoteOf(t, d.host+"/team/py:1"), ignore); !errors.As(err, &failed) ||
		failed.Registry != d.host {
		t.Error(err)
	}
	if hasTag(t, d, "team/py", "1") {
		t.Error("there is a tag")
	}
}

// If the manifest of a signature is about another snapshot, the signature is not copied. In the
// other repository, it would become a signature of that snapshot.
func TestCopyLeavesForeignSubjects(t *testing.T) {
	d, other := digest.FromString("a"), digest.FromString("b")
	ann := newKey(t)
	of := func(subject *oci.Descriptor, bundle []byte, err error) proof {
		m := oci.Manifest{Subject: subject, Config: oci.DescriptorEmptyJSON}
		return proof{referrer{[]byte("{}"), m, bundle}, err}
	}
	good := bundleFor(t, ann, d)
	list, err := (&conn{}).carry(t.Context(), d, []proof{
		of(&oci.Descriptor{Digest: d}, good, nil),
		of(&oci.Descriptor{Digest: other}, good, nil),
		of(nil, good, nil),
		of(&oci.Descriptor{Digest: d}, bundleFor(t, ann, other), nil),
		of(&oci.Descriptor{Digest: d}, good, unusable("it is damaged")),
	})
	if err != nil || len(list) != 1 {
		t.Errorf("%d signatures, %v", len(list), err)
	}
}

// The manifest of a signature is copied byte by byte, and registries may decode it in another way.
// So a signature whose manifest has two subjects is not copied, and does not count.
func TestCopyLeavesAmbiguousManifests(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	ann := newKey(t)
	s, d, a, b := serveReferrers(t), serveReferrers(t), newHost(t).hasty(), newHost(t).hasty().trusting(t, ann)
	a.make(t, "parent", "", 2, 'p')
	sent := a.push(t, "parent", s.host+"/team/py:1")
	a.plant(t, s.host+"/team/py:1", sent.Digest(), bundleFor(t, ann, sent.Digest()))
	from, to := strictly(t, s.host+"/team/py:1"), strictly(t, d.host+"/team/py:1")
	c, err := a.dial(t.Context(), from, from.ref.Context().Scope("pull"))
	if err != nil {
		t.Fatal(err)
	}
	list, err := c.proofs(t.Context(), sent.Digest())
	if err != nil || len(list) != 1 {
		t.Fatalf("%d signatures, %v", len(list), err)
	}
	other := fmt.Sprintf(`{"subject":{"mediaType":%q,"size":1,"digest":%q},`, oci.MediaTypeImageManifest,
		digest.FromString("other"))
	text := append([]byte(other), bytes.Replace(list[0].text[1:], []byte(`"subject"`), []byte(`"Subject"`), 1)...)
	out, err := c.pusher()
	if err != nil {
		t.Fatal(err)
	}
	ref := from.ref.Context().Digest(digest.FromBytes(text).String())
	if err := out.Put(t.Context(), ref, manifest(text)); err != nil {
		t.Fatal(err)
	}
	if list, err = c.proofs(t.Context(), sent.Digest()); err != nil || len(list) != 2 {
		t.Fatalf("%d signatures with the ambiguous one, %v", len(list), err)
	}
	for policy, copied := range map[Policy]Remote{Require: from, Off: from.Under(Off)} {
		if got, err := b.Copy(t.Context(), "ann", copied, to, ignore); err != nil || got.Signatures != 1 {
			t.Errorf("policy %v: %d signatures, %v", policy, got.Signatures, err)
		}
	}
}

// Every writer to the source can add signatures. They do not make the copy unusable for hosts that trust another key.
// A copy fails if the target would have more signatures than a pull accepts.
func TestCopyOfManySignatures(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	ann, eve := newKey(t), newKey(t)
	a, b := newHost(t).hasty(), newHost(t).hasty().trusting(t, ann)
	a.make(t, "parent", "", 2, 'p')
	s, d := serveReferrers(t), serveReferrers(t)
	sent := a.push(t, "parent", s.host+"/team/py:1")
	a.push(t, "parent", d.host+"/team/py:0")
	for range 5 {
		a.plant(t, d.host+"/team/py:0", sent.Digest(), bundleFor(t, ann, sent.Digest()))
	}
	a.plant(t, s.host+"/team/py:1", sent.Digest(), bundleFor(t, ann, sent.Digest()))
	for range maxBundles - 1 {
		a.plant(t, s.host+"/team/py:1", sent.Digest(), bundleFor(t, eve, sent.Digest()))
	}
	from, to := strictly(t, s.host+"/team/py:1"), strictly(t, d.host+"/team/py:1")
	if _, err := b.Copy(t.Context(), "ann", from.Under(Off), to, ignore); err == nil ||
		!strings.Contains(err.Error(), "at most 32") || hasTag(t, d, "team/py", "1") {
		t.Errorf("a copy with 37 signatures: %v", err)
	}
	if got, err := b.Copy(t.Context(), "ann", from, to, ignore); err != nil || got.Signatures != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	mustPull(t, b, to)
}
