package ocihttp_test

import (
	"encoding/json"
	"errors"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
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
	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/guest/agent"
	"github.com/forkd/forkd/internal/host/hotlist"
	"github.com/forkd/forkd/internal/host/hub"
)

func TestMain(m *testing.M) { apirig.Main(m, agent.Main) }

// start starts a daemon whose VMs are faked.
func start(t *testing.T, o apirig.Options) *apirig.Rig {
	t.Helper()
	o.Agent = apirig.SelfAgent
	return apirig.Start(t, o)
}

// source starts a daemon with the snapshot a.b, whose base image does not compress, and its branch
// b1.
func source(t *testing.T, o apirig.Options) *apirig.Rig {
	t.Helper()
	r := start(t, o)
	bake(t, r, t.TempDir())
	forked, err := r.Fork(t.Context(), client.ForkRequest{SnapshotTag: r.Parent.Tag, N: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Branch(t.Context(), forked.Sandboxes[0].ID, client.BranchRequest{Tag: "b1"}); err != nil {
		t.Fatal(err)
	}
	return r
}

// bake makes the snapshot a.b from a base image in dir.
func bake(t *testing.T, r *apirig.Rig, dir string) {
	t.Helper()
	noise := make([]byte, 4<<20)
	random := rand.NewChaCha8([32]byte{1})
	random.Read(noise)
	r.Parent.Rootfs = filepath.Join(dir, "base")
	if err := os.WriteFile(r.Parent.Rootfs, noise, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Bake(t.Context(), r.Parent); err != nil {
		t.Fatal(err)
	}
}

// hostOf returns the host and port of a URL.
func hostOf(url string) string { return strings.TrimPrefix(url, "http://") }

// pullOf returns a request for a snapshot of the daemon at a URL.
func pullOf(url, name, token string) client.PullRequest {
	req := client.PullRequest{Reference: hostOf(url) + "/" + name, Trust: "off"}
	if token != "" {
		req.RegistryAuth = map[string]client.RegistryAuth{hostOf(url): {Username: "any", Password: token}}
	}
	return req
}

// isCode fails the test if err is not an API error with this code and text.
func isCode(t *testing.T, err error, code, text string) {
	t.Helper()
	var api *client.Error
	if !errors.As(err, &api) || api.Code != code || !strings.Contains(api.Message, text) {
		t.Errorf("%v, want the code %s and %q", err, code, text)
	}
}

// none(t, r) fails the test if a daemon has a snapshot.
func none(t *testing.T, r *apirig.Rig) {
	t.Helper()
	if list, err := r.Snapshots(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("%d snapshots, %v", len(list), err)
	}
}

// A daemon pulls snapshots from another daemon as from a registry. If it has the parent of a
// snapshot, it pulls only the snapshot's own files.
func TestPullFromADaemon(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	a, b := source(t, apirig.Options{Tokens: []auth.Token{{Name: "b", Scope: auth.Pull}}}), start(t, apirig.Options{})
	find := client.FindRequest{Reference: hostOf(a.URL) + "/b1:latest",
		RegistryAuth: pullOf(a.URL, "b1:latest", a.Tokens["b"]).RegistryAuth}
	found, err := b.FindSnapshot(t.Context(), find)
	if err != nil || found.Tag != "b1" || found.LackingBytes < 4<<20 || found.Problem != "" ||
		!strings.Contains(found.TrustProblem, "has no signature") {
		t.Fatalf("%+v, %v", found, err)
	}
	got, err := b.PullSnapshot(t.Context(), pullOf(a.URL, "b1:latest", a.Tokens["b"]), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got.Snapshot.Tag != "b1" || got.Digest != found.Digest || got.Moved != found.LackingBytes {
		t.Errorf("%+v", got)
	}
	if err := b.VerifySnapshot(t.Context(), "b1"); err != nil {
		t.Error(err)
	}
	if _, err := b.Fork(t.Context(), client.ForkRequest{SnapshotTag: "b1", N: 1}); err != nil {
		t.Error(err)
	}
	parent, err := b.PullSnapshot(t.Context(), pullOf(a.URL, "a.b:latest", a.Tokens["b"]), nil)
	if err != nil || parent.Moved > 1<<20 {
		t.Errorf("%d bytes were fetched for a snapshot of the same family, %v", parent.Moved, err)
	}
	again := pullOf(a.URL, "b1@"+got.Digest, a.Tokens["b"])
	again.Tag = "again"
	if got, err := b.PullSnapshot(t.Context(), again, nil); err != nil || got.Moved > 1<<20 {
		t.Errorf("%d bytes were fetched again, %v", got.Moved, err)
	}
	registry := httptest.NewServer(ociregistry.New(ociregistry.Logger(log.New(io.Discard, "", 0))))
	defer registry.Close()
	copied, err := b.CopySnapshot(t.Context(), client.CopyRequest{From: hostOf(a.URL) + "/b1:latest", Trust: "off",
		To: hostOf(registry.URL) + "/team/b1:1", RegistryAuth: find.RegistryAuth}, nil)
	if err != nil || copied.Digest != found.Digest {
		t.Errorf("copied %s, %v", copied.Digest, err)
	}
	lines, err := os.ReadFile(a.AuditLog)
	if err != nil || !strings.Contains(string(lines), `"GET /v2/{name}/blobs/{digest}"`) ||
		!strings.Contains(string(lines), `"token:b"`) {
		t.Errorf("not in the audit log: %v", err)
	}
}

// Only clients that may take a snapshot to another host get it. A client does not learn which other
// snapshots exist.
func TestPullNeedsRights(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	a, b := source(t, apirig.Options{Tokens: []auth.Token{{Name: "look", Scope: auth.Read}, {Name: "run", Scope: auth.Run},
		{Name: "pull", Scope: auth.Pull}, {Name: "team", Scope: auth.Pull, Prefix: "team/"}}}), start(t, apirig.Options{})
	box, err := a.Fork(t.Context(), client.ForkRequest{SnapshotTag: "a.b", N: 1, Labels: map[string]string{"team/x": ""}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Branch(t.Context(), box.Sandboxes[0].ID, client.BranchRequest{Tag: "team.branch"}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.CompactSnapshot(t.Context(), "team.branch", "team.whole"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ token, name, code, text string }{
		{"", "b1:latest", "denied_by_registry", "401"},
		{"wrong", "b1:latest", "denied_by_registry", "401"},
		{a.Tokens["look"], "b1:latest", "denied_by_registry", "has the scope read, and this wants pull"},
		{a.Tokens["run"], "none:latest", "denied_by_registry", "has the scope run, and this wants pull"},
		{a.Tokens["pull"], "none:latest", "not_found_in_registry", `NAME_UNKNOWN: snapshot \"none\": not found`},
		{a.Tokens["pull"], "b1:1", "not_found_in_registry", "want the tag latest"},
		{a.Tokens["pull"], "b1@" + digest.FromString("x").String(), "not_found_in_registry", "MANIFEST_UNKNOWN"},
		{a.Tokens["team"], "none:latest", "not_found_in_registry", `NAME_UNKNOWN: snapshot \"none\": not found`},
		{a.Tokens["team"], "b1:latest", "not_found_in_registry", `NAME_UNKNOWN: snapshot \"b1\": not found`},
		{a.Tokens["team"], "a.b:latest", "denied_by_registry", "DENIED"}, // a parent, which the team may fork
		{a.Tokens["team"], "team.branch:latest", "denied_by_registry", "has layers of other snapshots"},
	} {
		_, err := b.PullSnapshot(t.Context(), pullOf(a.URL, c.name, c.token), nil)
		isCode(t, err, c.code, c.text)
	}
	none(t, b)
	if _, err := b.PullSnapshot(t.Context(), pullOf(a.URL, "team.whole:latest", a.Tokens["team"]), nil); err != nil {
		t.Error(err)
	}
	// A token of a daemon also works as a bearer token.
	req := pullOf(a.URL, "a.b:latest", "")
	req.RegistryAuth = map[string]client.RegistryAuth{hostOf(a.URL): {RegistryToken: a.Tokens["pull"]}}
	if _, err := b.PullSnapshot(t.Context(), req, nil); err != nil {
		t.Error(err)
	}
	// The daemon that pulls uses the login that its user has stored.
	config := t.TempDir()
	t.Setenv("DOCKER_CONFIG", config)
	stored, err := json.Marshal(map[string]any{"auths": map[string]any{hostOf(a.URL): map[string][]byte{
		"auth": []byte("forkd:" + a.Tokens["pull"])}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(config, "config.json"), stored, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := b.PullSnapshot(t.Context(), pullOf(a.URL, "b1:latest", ""), nil); err != nil {
		t.Error(err)
	}
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	// A token with the scope pull can do nothing else.
	cl, err := client.New(a.URL, a.Tokens["pull"])
	if err != nil {
		t.Fatal(err)
	}
	_, err = cl.Snapshots(t.Context())
	isCode(t, err, "scope", "has the scope pull, and this wants read")
	body, err := cl.PackSnapshot(t.Context(), "b1")
	if err == nil {
		body.Close()
	}
	isCode(t, err, "scope", "")
	// The daemon's policy requires a signature.
	unsigned := pullOf(a.URL, "b1:latest", a.Tokens["pull"])
	unsigned.Trust, unsigned.Tag = "", "unsigned"
	_, err = b.PullSnapshot(t.Context(), unsigned, nil)
	isCode(t, err, "not_signed", "has no signature")
	_, err = b.PushSnapshot(t.Context(), "a.b", client.PushRequest{Reference: hostOf(a.URL) + "/a.b:latest",
		RegistryAuth: unsigned.RegistryAuth}, nil)
	isCode(t, err, "denied_by_registry", "has the scope pull, and this wants admin")
}

// request sends a request with the default token, and returns the answer with its body.
func request(t *testing.T, r *apirig.Rig, method, path string, header ...string) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, r.URL+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth("any", apirig.Token)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
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

// The answers have the form of OCI's distribution API.
func TestAnswers(t *testing.T) {
	a := source(t, apirig.Options{})
	resp, text := request(t, a, "GET", "/v2/b1/manifests/latest")
	var m oci.Manifest
	if err := json.Unmarshal(text, &m); err != nil || resp.StatusCode != 200 ||
		resp.Header.Get("Content-Type") != oci.MediaTypeImageManifest ||
		resp.Header.Get("Docker-Content-Digest") != digest.FromBytes(text).String() {
		t.Fatalf("%v %.200s, %v", resp.Header, text, err)
	}
	if head, p := request(t, a, "HEAD", "/v2/b1/manifests/latest"); head.ContentLength != int64(len(text)) ||
		len(p) != 0 || head.Header.Get("Docker-Content-Digest") != digest.FromBytes(text).String() {
		t.Errorf("HEAD: %v", head.Header)
	}
	large := m.Layers[0]
	for _, l := range m.Layers {
		if l.Size > large.Size {
			large = l
		}
	}
	path := "/v2/b1/blobs/" + large.Digest.String()
	resp, whole := request(t, a, "GET", path)
	if resp.StatusCode != 200 || digest.FromBytes(whole) != large.Digest || resp.Header.Get("Accept-Ranges") != "bytes" {
		t.Fatalf("%d bytes: %v", len(whole), resp.Header)
	}
	resp, part := request(t, a, "GET", path, "Range", "bytes=100-299")
	if resp.StatusCode != http.StatusPartialContent || string(part) != string(whole[100:300]) {
		t.Errorf("a range of %d bytes: %v", len(part), resp.Header)
	}
	manifest := digest.FromBytes(text).String()
	for _, c := range []struct {
		method, path string
		status       int
		text         string
	}{
		{"GET", "/v2/", 200, "{}"},
		{"GET", "/v2/b1/tags/list", 200, `{"name":"b1","tags":["latest"]}`},
		{"GET", "/v2/b1/manifests/" + manifest, 200, "application/vnd.forkd.snapshot.v1"},
		{"GET", "/v2/b1/referrers/" + manifest, 200, `"manifests":[]`},
		{"GET", "/v2/b1/manifests/1", 404, "MANIFEST_UNKNOWN"},
		{"GET", "/v2/b1/manifests/sha256-" + strings.Repeat("0", 64), 404, "MANIFEST_UNKNOWN"},
		{"GET", "/v2/b1/blobs/" + digest.FromString("x").String(), 404, "BLOB_UNKNOWN"},
		{"GET", "/v2/a.b/blobs/" + m.Config.Digest.String(), 404, "BLOB_UNKNOWN"}, // a blob of b1
		{"GET", "/v2/b1/blobs/latest", 404, "BLOB_UNKNOWN"},
		{"GET", "/v2/b1/blobs/sha512:" + strings.Repeat("0", 128), 404, "BLOB_UNKNOWN"},
		{"GET", "/v2/-x/tags/list", 404, "NAME_UNKNOWN"},
		{"GET", "/v2/b1/tags/none", 404, "UNSUPPORTED"},
		{"POST", "/v2/b1/blobs/uploads/", 202, ""},
		{"PUT", "/v2/b1/manifests/latest", 405, "accepts only signatures"},
		{"DELETE", "/v2/b1/manifests/latest", 405, "accepts only signatures"},
		{"GET", "/v2/sandboxes/manifests/latest", 404, "NAME_UNKNOWN"},
		{"GET", "/v2/sandboxes", 401, "X-API-Key"}, // E2B's API
		{"POST", "/v2/templates/tags/builds/x", 401, "X-API-Key"},
		{"GET", "/v2/templates/tags/list", 404, "NAME_UNKNOWN"},
	} {
		if resp, p := request(t, a, c.method, c.path); resp.StatusCode != c.status || !strings.Contains(string(p), c.text) {
			t.Errorf("%s %s: %d %.200s, want %d and %q", c.method, c.path, resp.StatusCode, p, c.status, c.text)
		}
	}
	if resp, p := request(t, a, "GET", path, "Range", "bytes=99999999-"); resp.StatusCode != 416 {
		t.Errorf("a range behind the end: %d %.100s", resp.StatusCode, p)
	}
	if resp, p := request(t, a, "GET", "/v2/", "Authorization", "Basic !"); resp.StatusCode != 401 ||
		resp.Header.Get("WWW-Authenticate") != `Basic realm="forkd"` || !strings.Contains(string(p), "UNAUTHORIZED") {
		t.Errorf("without a token: %d %.100s", resp.StatusCode, p)
	}
	if resp, p := request(t, a, "GET", "/v2/b1/tags/list", "Origin", "https://evil.example", "Sec-Fetch-Site",
		"cross-site"); resp.StatusCode != 403 {
		t.Errorf("from a web page: %d %.100s", resp.StatusCode, p)
	}
}

// A client that asks for the list of hot frames of a snapshot gets the list that is kept for the
// snapshot.
func TestHotFramesOfALocalSnapshot(t *testing.T) {
	dir := t.TempDir()
	a := source(t, apirig.Options{Dir: dir})
	_, text := request(t, a, "GET", "/v2/b1/manifests/latest")
	manifest := digest.FromBytes(text)
	var m oci.Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	_, text = request(t, a, "GET", "/v2/b1/blobs/"+m.Config.Digest.String())
	var local struct{ ID string }
	if err := json.Unmarshal(text, &local); err != nil || local.ID == "" {
		t.Fatalf("%s, %v", text, err)
	}
	ask := func() (list oci.Index) {
		t.Helper()
		path := "/v2/b1/referrers/" + manifest.String() + "?artifactType=" + url.QueryEscape(artifact.HotType)
		resp, text := request(t, a, "GET", path)
		if err := json.Unmarshal(text, &list); err != nil || resp.StatusCode != 200 {
			t.Fatalf("%s, %v", text, err)
		}
		return list
	}
	if list := ask(); len(list.Manifests) != 0 {
		t.Errorf("without a list: %+v", list)
	}
	hot, err := artifact.HotOf(map[digest.Digest][]int{m.Layers[0].Digest: {0}}).Encode()
	if err == nil {
		err = hotlist.Lists{Dir: filepath.Join(hub.Dir(filepath.Join(dir, "state")), "hot")}.Keep(local.ID, hot)
	}
	if err != nil {
		t.Fatal(err)
	}
	list := ask()
	if len(list.Manifests) != 1 || list.Manifests[0].ArtifactType != artifact.HotType {
		t.Fatalf("%+v", list)
	}
	_, text = request(t, a, "GET", "/v2/b1/manifests/"+list.Manifests[0].Digest.String())
	var about oci.Manifest
	if err := json.Unmarshal(text, &about); err != nil || about.Subject == nil || about.Subject.Digest != manifest {
		t.Fatalf("%s, %v", text, err)
	}
	if _, got := request(t, a, "GET", "/v2/b1/blobs/"+about.Layers[0].Digest.String()); string(got) != string(hot) {
		t.Errorf("the list %q, want %q", got, hot)
	}
	if _, text := request(t, a, "GET", "/v2/b1/referrers/"+manifest.String()); strings.Contains(string(text), "hot") {
		t.Errorf("a client that asks for signatures gets %s", text)
	}
}
