package ocihttp_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ociregistry "github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"
	oci "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/sigstore"
)

// signer makes a key, and writes its public part into the directory of trusted keys.
func signer(t *testing.T, dir string) *sigstore.PrivateKey {
	t.Helper()
	key, err := sigstore.NewPrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ann.pub"), key.Public().PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	return key
}

// A snapshot can be signed in the daemon that has it. Another daemon, whose policy requires a
// signature, can then pull the snapshot. A copy of the snapshot in a registry also has the
// signature.
func TestSignatureOfALocalSnapshot(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	keys := t.TempDir()
	a := source(t, apirig.Options{Tokens: []auth.Token{{Name: "pull", Scope: auth.Pull}}})
	b := start(t, apirig.Options{TrustedKeys: keys})
	ann := signer(t, keys)
	admin, pull := pullOf(a.URL, "b1:latest", apirig.Token), pullOf(a.URL, "b1:latest", a.Tokens["pull"])
	pull.Trust = ""
	_, err := b.PullSnapshot(t.Context(), pull, nil)
	isCode(t, err, "not_signed", "has no signature")
	found, err := b.FindSnapshot(t.Context(), client.FindRequest{Reference: pull.Reference,
		RegistryAuth: pull.RegistryAuth})
	if err != nil {
		t.Fatal(err)
	}
	sign := func(digest string, auths map[string]client.RegistryAuth) error {
		bundle, err := sigstore.Sign(ann, digest)
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.SignSnapshot(t.Context(), client.SignRequest{Reference: found.Reference, Bundle: string(bundle),
			RegistryAuth: auths})
		return err
	}
	isCode(t, sign(found.Digest, pull.RegistryAuth), "denied_by_registry", "has the scope pull, and this wants admin")
	if err := sign(found.Digest, admin.RegistryAuth); err != nil {
		t.Fatal(err)
	}
	got, err := b.PullSnapshot(t.Context(), pull, nil)
	if err != nil || got.SignedBy != "ann" {
		t.Errorf("signed by %q, %v", got.SignedBy, err)
	}
	registry := httptest.NewServer(ociregistry.New(ociregistry.Logger(log.New(io.Discard, "", 0))))
	defer registry.Close()
	copied, err := b.CopySnapshot(t.Context(), client.CopyRequest{From: pull.Reference,
		To: hostOf(registry.URL) + "/team/b1:1", RegistryAuth: pull.RegistryAuth}, nil)
	if err != nil || copied.Signatures != 1 || copied.SignedBy != "ann" {
		t.Errorf("%+v, %v", copied, err)
	}
	for _, path := range []string{"b1/referrers/" + found.Digest + "?artifactType=other", "a.b/referrers/" + found.Digest,
		"b1/referrers/" + digest.FromString("x").String()} {
		if _, p := request(t, a, "GET", "/v2/"+path); strings.Contains(string(p), "sha256") {
			t.Errorf("%s: %s", path, p)
		}
	}
	// The signature is removed with its snapshot.
	signed := filepath.Join(filepath.Dir(a.AuditLog), "state", "hub", "signed")
	if dirs, err := os.ReadDir(signed); err != nil || len(dirs) != 1 {
		t.Errorf("%d directories, %v", len(dirs), err)
	}
	if err := a.DeleteSnapshot(t.Context(), "b1", client.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if dirs, err := os.ReadDir(signed); err != nil || len(dirs) != 0 {
		t.Errorf("%d directories are left, %v", len(dirs), err)
	}
}

// A daemon accepts signatures of its own snapshots and nothing else, in bounded memory.
func TestUploads(t *testing.T) {
	a := source(t, apirig.Options{})
	_, text := request(t, a, "GET", "/v2/b1/manifests/latest")
	subject := oci.Descriptor{MediaType: oci.MediaTypeImageManifest, Digest: digest.FromBytes(text),
		Size: int64(len(text))}
	key := signer(t, t.TempDir())
	bundleOf := func(d digest.Digest) []byte {
		bundle, err := sigstore.Sign(key, d.String())
		if err != nil {
			t.Fatal(err)
		}
		return bundle
	}
	// upload sends a blob in two parts, and returns the status of the last answer.
	upload := func(p []byte, d digest.Digest) int {
		resp, _ := send(t, a, "POST", "/v2/b1/blobs/uploads/", nil)
		at := resp.Header.Get("Location")
		if resp, _ := send(t, a, "PATCH", at, p[:len(p)/2]); resp.StatusCode != http.StatusAccepted {
			return resp.StatusCode
		}
		resp, _ = send(t, a, "PUT", at+"?digest="+d.String(), p[len(p)/2:])
		return resp.StatusCode
	}
	put := func(m oci.Manifest) (int, string) {
		p, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		resp, body := send(t, a, "PUT", "/v2/b1/manifests/"+digest.FromBytes(p).String(), p)
		return resp.StatusCode, string(body)
	}
	of := func(bundle []byte, subject *oci.Descriptor) oci.Manifest {
		return oci.Manifest{MediaType: oci.MediaTypeImageManifest, ArtifactType: sigstore.BundleType,
			Config: oci.DescriptorEmptyJSON, Subject: subject,
			Layers: []oci.Descriptor{{MediaType: sigstore.BundleType, Digest: digest.FromBytes(bundle),
				Size: int64(len(bundle))}}}
	}
	good, other := bundleOf(subject.Digest), bundleOf(digest.FromString("x"))
	if status, body := put(of(good, &subject)); status != 400 || !strings.Contains(body, "not uploaded before") {
		t.Errorf("without a bundle: %d %s", status, body)
	}
	for _, bundle := range [][]byte{good, other} {
		if status := upload(bundle, digest.FromBytes(bundle)); status != http.StatusCreated {
			t.Fatalf("upload: %d", status)
		}
	}
	if status := upload(good, digest.FromString("x")); status != 400 {
		t.Errorf("another digest: %d", status)
	}
	if status := upload(make([]byte, 1<<20), digest.FromString("x")); status != 405 {
		t.Errorf("a large blob: %d", status)
	}
	if resp, _ := send(t, a, "PATCH", "/v2/b1/blobs/uploads/x", good); resp.StatusCode != 404 {
		t.Errorf("an unknown upload: %d", resp.StatusCode)
	}
	wrong := subject
	wrong.Digest = digest.FromString("x")
	image := of(good, &subject)
	image.ArtifactType = ""
	for what, m := range map[string]oci.Manifest{"another subject": of(good, &wrong), "no subject": of(good, nil),
		"a bundle for another digest": of(other, &subject), "an image": image} {
		if status, body := put(m); status != 400 || !strings.Contains(body, "MANIFEST_INVALID") {
			t.Errorf("%s: %d %s", what, status, body)
		}
	}
	if resp, _ := send(t, a, "PUT", "/v2/b1/manifests/latest", text); resp.StatusCode != 405 {
		t.Errorf("a tag: %d", resp.StatusCode)
	}
	for n := range 33 { // each manifest is different
		m := of(good, &subject)
		m.Annotations = map[string]string{"n": fmt.Sprint(n)}
		if status, body := put(m); n < 32 && status != http.StatusCreated || n == 32 && (status != 400 ||
			!strings.Contains(body, "has 32 signatures")) {
			t.Fatalf("signature %d: %d %s", n, status, body)
		}
	}
	for range 100 { // unfinished uploads make room for each other
		send(t, a, "POST", "/v2/b1/blobs/uploads/", nil)
	}
	if status, body := put(of(good, &subject)); status != 400 || !strings.Contains(body, "not uploaded before") {
		t.Errorf("an upload is kept beside 100 others: %d %s", status, body)
	}
}

// send sends a request with the default token and a body.
func send(t *testing.T, r *apirig.Rig, method, path string, body []byte) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, r.URL+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth("any", apirig.Token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	p, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, p
}
