package v1_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ociregistry "github.com/google/go-containerregistry/pkg/registry"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/sigstore"
)

// packed bakes a snapshot, forks it, branches the fork, and returns the archive of the branch.
func packed(t *testing.T, r *apirig.Rig) []byte {
	t.Helper()
	if _, err := r.Bake(t.Context(), r.Parent); err != nil {
		t.Fatal(err)
	}
	forked, err := r.Fork(t.Context(), client.ForkRequest{SnapshotTag: r.Parent.Tag, N: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Branch(t.Context(), forked.Sandboxes[0].ID, client.BranchRequest{Tag: "b1",
		Labels: map[string]string{"team": "a"}}); err != nil {
		t.Fatal(err)
	}
	archive, err := r.PackSnapshot(t.Context(), "b1")
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	p, err := io.ReadAll(archive)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// isCode fails the test unless err is an API error with this code and text.
func isCode(t *testing.T, err error, code, text string) {
	t.Helper()
	var api *client.Error
	if !errors.As(err, &api) || api.Code != code || !strings.Contains(api.Message, text) {
		t.Errorf("%v, want the code %s and %q", err, code, text)
	}
}

// A snapshot is refused if a VMM of this host cannot restore its saved state.
func TestUnpackTriesTheState(t *testing.T) {
	a := start(t, apirig.Options{})
	b := start(t, apirig.Options{Prepare: func(v *vmfake.VMMs) {
		v.RestoreErr = func(int) error { return vm.WithCode(vm.ErrCPU, errors.New("it lacks avx512f")) }
	}})
	_, err := b.UnpackSnapshot(t.Context(), bytes.NewReader(packed(t, a)), client.UnpackOptions{Trust: "off"}, nil)
	isCode(t, err, "artifact_refused", "this host cannot run it: it lacks avx512f")
	if list, err := b.Snapshots(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	if n := len(b.VMs.Live); n != 0 {
		t.Errorf("%d VMs are left", n)
	}
}

// A snapshot goes from one daemon to another through the client. The second daemon can fork it.
func TestSnapshotsTravelInArchives(t *testing.T) {
	a, b := start(t, apirig.Options{}), start(t, apirig.Options{})
	archive := packed(t, a)
	trusted := client.UnpackOptions{Trust: "off"}
	var files []string
	got, err := b.UnpackSnapshot(t.Context(), bytes.NewReader(archive), trusted, func(e client.HubEvent) error {
		files = append(files, e.File.Name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if s := got.Snapshot; s == nil || s.Tag != "b1" || s.Status != "ready" || len(s.Labels) != 0 ||
		!strings.HasPrefix(got.Digest, "sha256:") || got.Bytes == 0 || len(files) < 4 {
		t.Errorf("%+v after %q", got, files)
	}
	if err := b.VerifySnapshot(t.Context(), "b1"); err != nil {
		t.Error(err)
	}
	if _, err := b.Fork(t.Context(), client.ForkRequest{SnapshotTag: "b1", N: 2}); err != nil {
		t.Error(err)
	}
	if _, err := b.UnpackSnapshot(t.Context(), bytes.NewReader(archive), client.UnpackOptions{Trust: "off",
		Tag: "b2"}, nil); err != nil {
		t.Error(err)
	}
	_, err = b.UnpackSnapshot(t.Context(), bytes.NewReader(archive), trusted, nil)
	isCode(t, err, "snapshot_exists", "b1")
	_, err = b.UnpackSnapshot(t.Context(), bytes.NewReader(archive), client.UnpackOptions{Tag: "b3"}, nil)
	isCode(t, err, "not_signed", "archive: ")
	_, err = b.UnpackSnapshot(t.Context(), bytes.NewReader(archive), client.UnpackOptions{Tag: "b3",
		Signature: []byte("x")}, nil)
	isCode(t, err, "signature_invalid", "no sigstore bundle")
	_, err = b.UnpackSnapshot(t.Context(), bytes.NewReader(archive), client.UnpackOptions{Tag: "b3",
		Signature: bytes.Repeat([]byte("x"), 9000)}, nil)
	isCode(t, err, "invalid_field", "signature: 9000 bytes")
	_, err = b.UnpackSnapshot(t.Context(), bytes.NewReader(archive), client.UnpackOptions{Tag: "b3", Trust: "true"}, nil)
	isCode(t, err, "invalid_field", "trust: ")
	_, err = b.UnpackSnapshot(
		t.Context(),
		bytes.NewReader(archive),
		client.UnpackOptions{Trust: "off", Tag: "../x"},
		nil,
	)
	isCode(t, err, "invalid_field", "tag: ")
	_, err = b.UnpackSnapshot(
		t.Context(),
		bytes.NewReader(archive[:len(archive)/2]),
		client.UnpackOptions{Trust: "off", Tag: "b3"},
		nil,
	)
	isCode(t, err, "artifact_refused", "truncated")
	bad := bytes.Clone(archive)
	bad[len(bad)/2] ^= 1
	_, err = b.UnpackSnapshot(t.Context(), bytes.NewReader(bad), client.UnpackOptions{Trust: "off", Tag: "b3"}, nil)
	isCode(t, err, "artifact_refused", "")
	_, err = b.PackSnapshot(t.Context(), "none")
	isCode(t, err, "snapshot_not_found", "none")
	if list, err := b.Snapshots(t.Context()); err != nil || len(list) != 2 {
		t.Errorf("%d snapshots, %v", len(list), err)
	}
	log, err := os.ReadFile(b.AuditLog)
	if err != nil || !strings.Contains(string(log), `"POST /v1/archives"`) {
		t.Errorf("not in the audit log: %v", err)
	}
}

// registryOf serves an OCI registry, and returns the name of a repository in it.
func registryOf(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(ociregistry.New(ociregistry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://") + "/team/py"
}

// A snapshot goes from one daemon to another through a registry. The second daemon can fork it.
func TestSnapshotsTravelThroughRegistries(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	a, b, repo := start(t, apirig.Options{}), start(t, apirig.Options{}), registryOf(t)
	packed(t, a)
	states := make(map[string]int)
	count := func(e client.HubEvent) error { states[e.File.State]++; return nil }
	sent, err := a.PushSnapshot(t.Context(), "b1", client.PushRequest{Reference: repo + ":1"}, count)
	if err != nil {
		t.Fatal(err)
	}
	if sent.Reference != repo+"@"+sent.Digest || sent.Moved == 0 || states["pushed"] < 4 {
		t.Errorf("%+v after %v", sent, states)
	}
	found, err := b.FindSnapshot(t.Context(), client.FindRequest{Reference: repo + ":1"})
	if err != nil || found.Tag != "b1" || found.Digest != sent.Digest || found.LackingBytes == 0 || found.Problem != "" {
		t.Errorf("%+v, %v", found, err)
	}
	got, err := b.PullSnapshot(t.Context(), client.PullRequest{Reference: sent.Reference, Trust: "off"}, count)
	if err != nil {
		t.Fatal(err)
	}
	if s := got.Snapshot; s == nil || s.Tag != "b1" || s.Status != "ready" || got.Digest != sent.Digest ||
		got.Moved != found.LackingBytes || states["pulled"] < 4 || states["unpacked"] < 4 {
		t.Errorf("%+v after %v", got, states)
	}
	if _, err := b.Fork(t.Context(), client.ForkRequest{SnapshotTag: "b1", N: 2}); err != nil {
		t.Error(err)
	}
	pull := func(req client.PullRequest) error { _, err := b.PullSnapshot(t.Context(), req, nil); return err }
	isCode(t, pull(client.PullRequest{Reference: repo + ":1", Trust: "off"}), "snapshot_exists", "b1")
	isCode(t, pull(client.PullRequest{Reference: repo + ":1", Tag: "b2"}), "not_signed", "has no signature")
	isCode(t, pull(client.PullRequest{Reference: repo + ":1", Tag: "b2", Trust: "true"}), "invalid_field", "trust: ")
	isCode(t, pull(client.PullRequest{Reference: "team/py:1", Trust: "off"}), "invalid_field", "reference: ")
	isCode(t, pull(client.PullRequest{Reference: repo + ":2", Trust: "off", Tag: "b2"}), "not_found_in_registry", "")
	isCode(t, pull(client.PullRequest{Reference: "127.0.0.1:1/py:2", Trust: "off", Tag: "b2"}), "registry_failed", "")
	other := map[string]client.RegistryAuth{"ghcr.io": {Username: "a", Password: "b"}}
	isCode(t, pull(client.PullRequest{Reference: repo + ":1", Trust: "off", Tag: "b2", RegistryAuth: other}),
		"invalid_field", "registry_auth: ghcr.io")
	_, err = a.PushSnapshot(t.Context(), "none", client.PushRequest{Reference: repo + ":1"}, nil)
	isCode(t, err, "snapshot_not_found", "none")
	_, err = a.PushSnapshot(t.Context(), "b1", client.PushRequest{Reference: sent.Reference}, nil)
	isCode(t, err, "invalid_field", "reference: ")
	log, err := os.ReadFile(a.AuditLog)
	if err != nil || !strings.Contains(string(log), `/push"`) {
		t.Errorf("not in the audit log: %v", err)
	}
}

// A daemon can copy a snapshot, with its signature, from one registry to another, even if the
// snapshot is not in the daemon's store. Nothing of the snapshot stays in the daemon's store.
func TestSnapshotsAreCopiedBetweenRegistries(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	keys := t.TempDir()
	a, b := start(t, apirig.Options{}), start(t, apirig.Options{TrustedKeys: keys})
	from, to := registryOf(t), registryOf(t)
	packed(t, a)
	sent, err := a.PushSnapshot(t.Context(), "b1", client.PushRequest{Reference: from + ":1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	states := make(map[string]int)
	move := func(req client.CopyRequest) (client.HubResult, error) {
		return b.CopySnapshot(t.Context(), req, func(e client.HubEvent) error { states[e.File.State]++; return nil })
	}
	fails := func(req client.CopyRequest, code, text string) {
		t.Helper()
		_, err := move(req)
		isCode(t, err, code, text)
	}
	fails(client.CopyRequest{From: from + ":1", To: to + ":1"}, "not_signed", sent.Digest)
	ann, err := sigstore.NewPrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := sigstore.Sign(ann, sent.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.SignSnapshot(t.Context(), client.SignRequest{Reference: sent.Reference,
		Bundle: string(bundle)}); err != nil {
		t.Fatal(err)
	}
	fails(client.CopyRequest{From: from + ":1", To: to + ":1"}, "key_not_trusted", "no key is trusted here")
	if err := os.WriteFile(filepath.Join(keys, "ann.pub"), ann.Public().PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := move(client.CopyRequest{From: from + ":1", To: to + ":1"})
	if err != nil || got.Reference != to+"@"+sent.Digest || got.Digest != sent.Digest || got.Moved == 0 ||
		got.Signatures != 1 || got.SignedBy != "ann" || got.Snapshot != nil || states["pushed"] < 4 {
		t.Errorf("%+v after %v, %v", got, states, err)
	}
	clear(states)
	if got, err := move(client.CopyRequest{From: sent.Reference, To: to + ":2"}); err != nil || got.Moved != 0 ||
		states["exists"] < 4 {
		t.Errorf("%+v after %v, %v", got, states, err)
	}
	if list, err := b.Snapshots(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := b.PullSnapshot(t.Context(), client.PullRequest{Reference: to + ":1"}, nil); err != nil {
		t.Error(err)
	}
	auth := func(host string) map[string]client.RegistryAuth {
		return map[string]client.RegistryAuth{host: {Username: "a", Password: "b"}}
	}
	host, _, _ := strings.Cut(to, "/")
	if _, err := move(client.CopyRequest{From: from + ":1", To: to + ":3", RegistryAuth: auth(host)}); err != nil {
		t.Error(err)
	}
	fails(client.CopyRequest{From: from + ":1", To: to + ":3", RegistryAuth: auth("ghcr.io")}, "invalid_field",
		"registry_auth: ghcr.io: the reference is of the registry 127.0.0.1:")
	fails(client.CopyRequest{From: "team/py:1", To: to + ":3"}, "invalid_field", "from: ")
	fails(client.CopyRequest{From: from + ":1", To: "py:3"}, "invalid_field", "to: ")
	fails(client.CopyRequest{From: from + ":1", To: to + "@" + sent.Digest}, "invalid_field", "to: ")
	fails(client.CopyRequest{From: from + ":1", To: to + ":3", Trust: "true"}, "invalid_field", "trust: ")
	fails(client.CopyRequest{From: from + ":9", To: to + ":3"}, "not_found_in_registry", "")
	fails(client.CopyRequest{From: from + ":1", To: "127.0.0.1:1/py:3"}, "registry_failed", "registry 127.0.0.1:1: ")
	log, err := os.ReadFile(b.AuditLog)
	if err != nil || !strings.Contains(string(log), `"POST /v1/copies"`) {
		t.Errorf("not in the audit log: %v", err)
	}
}

// A signature reaches another daemon through the registry, and says which key vouches for the
// snapshot. The daemon gets no private key.
func TestSignaturesTravelThroughRegistries(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	keys := t.TempDir()
	a, b, repo := start(t, apirig.Options{}), start(t, apirig.Options{TrustedKeys: keys}), registryOf(t)
	packed(t, a)
	sent, err := a.PushSnapshot(t.Context(), "b1", client.PushRequest{Reference: repo + ":1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	verify := func(key string) (client.Signature, error) {
		return b.VerifySignature(t.Context(), client.SignatureRequest{Reference: repo + ":1", Key: key})
	}
	_, err = verify("")
	isCode(t, err, "not_signed", sent.Digest)
	ann, err := sigstore.NewPrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	sign := func(digest, reference string) error {
		bundle, err := sigstore.Sign(ann, digest)
		if err != nil {
			t.Fatal(err)
		}
		s, err := a.SignSnapshot(t.Context(), client.SignRequest{Reference: reference, Bundle: string(bundle)})
		if err == nil && (s.Reference != sent.Reference || s.Digest != sent.Digest) {
			t.Errorf("%+v", s)
		}
		return err
	}
	isCode(t, sign("sha256:"+strings.Repeat("0", 64), repo+":1"), "invalid_field", "bundle: ")
	if err := sign(sent.Digest, sent.Reference); err != nil {
		t.Fatal(err)
	}
	pull := func(trust string) (client.HubResult, error) {
		return b.PullSnapshot(t.Context(), client.PullRequest{Reference: repo + ":1", Trust: trust}, nil)
	}
	_, err = pull("")
	isCode(t, err, "key_not_trusted", "no key is trusted here")
	found, err := b.FindSnapshot(t.Context(), client.FindRequest{Reference: repo + ":1"})
	if err != nil || found.SignedBy != "" || !strings.Contains(found.TrustProblem, "no key is trusted") {
		t.Errorf("%+v, %v", found, err)
	}
	if s, err := verify(string(ann.Public().PEM())); err != nil || s.KeyDigest != ann.Public().ID() || s.SignedBy != "" {
		t.Errorf("%+v, %v", s, err)
	}
	_, err = verify("x")
	isCode(t, err, "invalid_field", "key: ")
	warned, err := pull("warn")
	if err != nil || !strings.Contains(warned.TrustProblem, "no key is trusted") || warned.SignedBy != "" {
		t.Errorf("%+v, %v", warned, err)
	}
	if err := b.DeleteSnapshot(t.Context(), "b1", client.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(keys, "ann.pub"), ann.Public().PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := pull(""); err != nil || got.SignedBy != "ann" || got.TrustProblem != "" {
		t.Errorf("%+v, %v", got, err)
	}
	if s, err := verify(""); err != nil || s.SignedBy != "ann" {
		t.Errorf("%+v, %v", s, err)
	}
}

// Packing and unpacking need the scope admin.
func TestArchivesNeedRights(t *testing.T) {
	r := start(t, apirig.Options{Tokens: []auth.Token{{Name: "look", Scope: auth.Read}, {Name: "run", Scope: auth.Run},
		{Name: "team", Scope: auth.Run, Prefix: "team/"}}})
	archive := packed(t, r)
	as := func(name string) *client.Client {
		cl, err := client.New(r.URL, r.Tokens[name])
		if err != nil {
			t.Fatal(err)
		}
		return cl
	}
	pack := func(name string) error {
		body, err := as(name).PackSnapshot(t.Context(), "b1")
		if err == nil {
			_, err = io.Copy(io.Discard, body)
			body.Close()
		}
		return err
	}
	unpack := func(name string) error {
		_, err := as(
			name,
		).UnpackSnapshot(t.Context(), bytes.NewReader(archive), client.UnpackOptions{Trust: "off", Tag: "team.x"}, nil)
		return err
	}
	through := func(name string) (push, pull, move, find, sign, verify error) {
		cl := as(name)
		_, push = cl.PushSnapshot(t.Context(), "b1", client.PushRequest{Reference: "127.0.0.1:1/py:1"}, nil)
		_, pull = cl.PullSnapshot(t.Context(), client.PullRequest{Reference: "127.0.0.1:1/py:1", Trust: "off"}, nil)
		_, move = cl.CopySnapshot(t.Context(), client.CopyRequest{From: "127.0.0.1:1/py:1", To: "127.0.0.1:1/py:2"}, nil)
		_, find = cl.FindSnapshot(t.Context(), client.FindRequest{Reference: "127.0.0.1:1/py:1"})
		_, sign = cl.SignSnapshot(t.Context(), client.SignRequest{Reference: "127.0.0.1:1/py:1", Bundle: "{}"})
		_, verify = cl.VerifySignature(t.Context(), client.SignatureRequest{Reference: "127.0.0.1:1/py:1"})
		return push, pull, move, find, sign, verify
	}
	for _, name := range []string{"look", "run", "team"} {
		push, pull, move, find, sign, verify := through(name)
		isCode(t, push, "scope", "")
		isCode(t, pull, "scope", "")
		isCode(t, move, "scope", "")
		isCode(t, find, "scope", "")
		isCode(t, sign, "scope", "")
		isCode(t, verify, "scope", "")
		isCode(t, pack(name), "scope", "")
		isCode(t, unpack(name), "scope", "")
	}
}

// If a client leaves or stalls during an upload, neither the snapshot nor its tag remains.
func TestUploadThatEndsLeavesNothing(t *testing.T) {
	r := start(t, apirig.Options{Limits: face.Limits{Stall: time.Second}, Unchecked: true})
	archive := packed(t, r)
	half := func() (io.Reader, *io.PipeWriter) {
		body, w := io.Pipe()
		go w.Write(archive[:len(archive)/2])
		return body, w
	}
	ctx, cancel := context.WithCancel(t.Context())
	body, w := half()
	time.AfterFunc(300*time.Millisecond, func() { // package http waits for the body
		cancel()
		w.CloseWithError(io.ErrClosedPipe)
	})
	if _, err := r.UnpackSnapshot(ctx, body, client.UnpackOptions{Trust: "off", Tag: "x"}, nil); err == nil ||
		ctx.Err() == nil {
		t.Error(err)
	}
	body, w = half()
	time.AfterFunc(3*time.Second, func() { w.CloseWithError(io.ErrClosedPipe) })
	_, err := r.UnpackSnapshot(t.Context(), body, client.UnpackOptions{Trust: "off", Tag: "x"}, nil)
	if err == nil {
		t.Error("an upload that stalls has succeeded")
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		left, err := filepath.Glob(filepath.Join(filepath.Dir(r.AuditLog), "state", "hub", "blobs", ".new-*"))
		if err != nil || len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%q are left", left)
		}
	}
	if _, err := r.UnpackSnapshot(t.Context(), bytes.NewReader(archive), client.UnpackOptions{Trust: "off",
		Tag: "x"}, nil); err != nil {
		t.Error(err)
	}
	resp, err := http.Post(r.URL+"/v1/archives", "application/x-tar", nil)
	if err != nil || resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("%v, %v", resp, err)
	}
}
