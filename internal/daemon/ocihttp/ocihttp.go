// Package ocihttp serves snapshots to other daemons. It answers the read requests of OCI's
// distribution API, so another daemon can pull a snapshot as from a registry. It accepts only those
// write requests that add a signature to a snapshot.
//
// The name of a repository is the tag of a snapshot, and the repository's only tag is Tag. Package hub makes the
// artifacts and keeps the signatures, and package tenancy says which snapshots a client may take.
package ocihttp

import (
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	oci "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/host/hub"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/sigstore"
)

// Tag is the tag of each repository.
const Tag = "latest"

// anyRoute stands for the pattern of a route in the audit log and in the metrics, if a request matches no route.
const anyRoute = "OCI"

// Server answers requests for snapshots.
type Server struct {
	face *face.Face
	hub  *hub.Hub
	mux  *http.ServeMux

	uploads uploads
}

// New returns a Server. It handles the requests for which Serves returns true.
func New(f *face.Face, h *hub.Hub) *Server {
	s := &Server{face: f, hub: h, mux: http.NewServeMux()}
	for _, route := range []struct {
		pattern string
		scope   auth.Scope
		handle  face.Handler
	}{
		{"GET /v2/{$}", auth.Pull, s.version},
		{"GET /v2/{name}/manifests/{reference}", auth.Pull, s.manifest},
		{"GET /v2/{name}/blobs/{digest}", auth.Pull, s.blob},
		{"GET /v2/{name}/referrers/{digest}", auth.Pull, s.referrers},
		{"GET /v2/{name}/tags/list", auth.Pull, s.tags},
		{"POST /v2/{name}/blobs/uploads/{$}", auth.Admin, s.begin},
		{"PATCH /v2/{name}/blobs/uploads/{id}", auth.Admin, s.add},
		{"PUT /v2/{name}/blobs/uploads/{id}", auth.Admin, s.end},
		{"PUT /v2/{name}/manifests/{reference}", auth.Admin, s.attach},
		{anyRoute, auth.Pull, s.other},
	} {
		pattern := route.pattern
		if pattern == anyRoute {
			pattern = "/v2/"
		}
		s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			audit.From(r.Context()).Route = route.pattern
			if err := auth.From(r.Context()).Need(route.scope); err != nil {
				s.fail(w, r, face.Sending(err))
				return
			}
			s.face.Pulls.Serve(w, r, route.handle, s.fail)
		})
	}
	return s
}

// form matches the paths of the distribution API (OCI distribution spec 1.1, "Endpoints"). The part
// after the name distinguishes such a path from paths of E2B's API, which also begin with /v2/.
var form = regexp.MustCompile(`^/v2/[^/]+/(manifests|blobs|referrers|tags)/`)

// ofE2B matches a path of E2B's API. Such a path also matches form if the template's id is
// manifests, blobs, referrers or tags. No path of the distribution API matches ofE2B, because a
// reference has no slash.
var ofE2B = regexp.MustCompile(`^/v2/templates/[^/]+/builds/[^/]+$`)

// Serves reports whether a request is for the distribution API.
func (s *Server) Serves(r *http.Request) bool {
	path := r.URL.Path
	return path == "/v2/" || form.MatchString(path) && !ofE2B.MatchString(path)
}

// ServeHTTP answers a request for which Serves returned true.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.face.Audited(http.HandlerFunc(s.identified)).ServeHTTP(w, r)
}

// identified identifies the client of a request, and calls the handler of the route.
func (s *Server) identified(w http.ResponseWriter, r *http.Request) {
	e := audit.From(r.Context())
	e.Route = anyRoute
	who, err := s.identify(r)
	if err != nil {
		if face.StatusOf(err) == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", `Basic realm="forkd"`)
		}
		face.LetGo(w)
		s.fail(w, r, err)
		return
	}
	e.Who = who.Who
	s.mux.ServeHTTP(w, r.WithContext(auth.With(r.Context(), who)))
}

// identify returns the principal of a request. Clients of registries send the token as a password, with any user name.
func (s *Server) identify(r *http.Request) (auth.Principal, error) {
	if err := s.face.CheckOrigin(r); err != nil {
		return auth.Principal{}, err
	}
	identify := s.face.Guard.Identify
	if _, token, ok := r.BasicAuth(); ok && r.Header.Get(auth.TokenHeader) == "" {
		identify = func(r *http.Request) (auth.Principal, error) { return s.face.Guard.IdentifyBy(r, token) }
	}
	who, err := identify(r)
	if scope := (*auth.ScopeError)(nil); err != nil && !errors.As(err, &scope) {
		err = face.NewError(http.StatusUnauthorized, err.Error()+": log in with any user name and a token as the password")
	}
	return who, err
}

// version tells a client that this is a registry, and that the registry accepts the client's token.
func (s *Server) version(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
	return send(w, "application/json", []byte("{}"))
}

// serve calls handle(…) with the name of the client, if the client may take the snapshot to another
// host.
func (s *Server) serve(r *http.Request, handle func(who, tag string) error) error {
	tag := r.PathValue("name")
	return s.face.View(r.Context()).Serve(tag, func(who string) error { return handle(who, tag) })
}

// errNoManifest reports a reference that names no manifest of a repository.
var errNoManifest = errors.New("no such manifest: want the tag " + Tag + ", or the digest of the snapshot's artifact")

// manifest answers with the manifest of a snapshot's artifact.
func (s *Server) manifest(w http.ResponseWriter, r *http.Request) error {
	reference := r.PathValue("reference")
	return s.serve(r, func(who, tag string) error {
		if _, err := digest.Parse(reference); err != nil && reference != Tag { // checked first, so that nothing is packed
			return errNoManifest
		}
		signatures, err := s.hub.Attached(tag)
		if err != nil {
			return err
		}
		for _, a := range signatures {
			if a.Digest().String() == reference {
				return sendManifest(w, a.Manifest)
			}
		}
		a, err := s.hub.Describe(r.Context(), who, tag)
		if err != nil {
			return err
		}
		if hot := s.hub.Hot(a); hot != nil && hot.Digest().String() == reference {
			return sendManifest(w, hot.Manifest)
		}
		if reference != Tag && reference != a.Digest().String() {
			return errNoManifest
		}
		return sendManifest(w, a.Manifest)
	})
}

func sendManifest(w http.ResponseWriter, manifest []byte) error {
	w.Header().Set("Docker-Content-Digest", digest.FromBytes(manifest).String())
	return send(w, oci.MediaTypeImageManifest, manifest)
}

// blob answers with a blob of a snapshot, or with a range of it.
func (s *Server) blob(w http.ResponseWriter, r *http.Request) error {
	d, err := digest.Parse(r.PathValue("digest"))
	return s.serve(r, func(who, tag string) error {
		if err != nil || d.Algorithm() != digest.SHA256 {
			return hub.ErrNoBlob
		}
		signatures, err := s.hub.Attached(tag)
		if err != nil {
			return err
		}
		for _, a := range signatures {
			if p := a.Blob(d); p != nil {
				return send(w, "application/octet-stream", p)
			}
		}
		c, err := s.hub.OpenBlob(r.Context(), who, tag, d)
		if errors.Is(err, hub.ErrNoBlob) {
			a, err := s.hub.Describe(r.Context(), who, tag)
			if err != nil {
				return err
			}
			if hot := s.hub.Hot(a); hot != nil && hot.Blob(d) != nil {
				return send(w, "application/octet-stream", hot.Blob(d))
			}
		}
		if err != nil {
			return err
		}
		defer c.Close()
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Docker-Content-Digest", d.String())
		w.Header().Set("Etag", strconv.Quote(d.String()))
		out := paced{w, http.NewResponseController(w), s.face.Limits.Stall}
		http.ServeContent(out, r, "", time.Time{}, c)
		return nil
	})
}

// paced is an answer that fails if the client receives nothing for the time limit.
type paced struct {
	http.ResponseWriter
	rc    *http.ResponseController
	limit time.Duration
}

func (p paced) Write(b []byte) (int, error) {
	_ = p.rc.SetWriteDeadline(time.Now().Add(p.limit)) // connections of some tests have no deadlines
	return p.ResponseWriter.Write(b)
}

// referrers() answers with a snapshot's signatures, or with its hot frames if the client asks for
// those.
func (s *Server) referrers(w http.ResponseWriter, r *http.Request) error {
	return s.serve(r, func(who, tag string) error {
		out := oci.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: oci.MediaTypeImageIndex,
			Manifests: []oci.Descriptor{}}
		kind := r.URL.Query().Get("artifactType")
		if kind != "" {
			w.Header().Set("Oci-Filters-Applied", "artifactType")
		}
		signatures, err := s.hub.Attached(tag)
		if err != nil {
			return err
		}
		if kind == artifact.HotType { // only for this type, because the description may take long
			a, err := s.hub.Describe(r.Context(), who, tag)
			if err != nil {
				return err
			}
			if hot := s.hub.Hot(a); hot != nil {
				signatures = append(signatures, *hot)
			}
		}
		for _, a := range signatures {
			var m oci.Manifest
			if json.Unmarshal(a.Manifest, &m) != nil || m.Subject == nil || // Attach has checked both
				m.Subject.Digest.String() != r.PathValue("digest") || kind != "" && kind != m.ArtifactType {
				continue
			}
			out.Manifests = append(out.Manifests, oci.Descriptor{MediaType: oci.MediaTypeImageManifest, Digest: a.Digest(),
				Size: int64(len(a.Manifest)), ArtifactType: m.ArtifactType, Annotations: m.Annotations})
		}
		return sendJSON(w, oci.MediaTypeImageIndex, out)
	})
}

// tags() answers with the list of the tags of a repository.
func (s *Server) tags(w http.ResponseWriter, r *http.Request) error {
	return s.serve(r, func(_, tag string) error {
		return sendJSON(w, "application/json", struct {
			Name string   `json:"name"`
			Tags []string `json:"tags"`
		}{tag, []string{Tag}})
	})
}

var errNoRoute = errors.New("no such route")

// other() answers requests that match no other route.
func (s *Server) other(_ http.ResponseWriter, r *http.Request) error {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return errNoRoute
	}
	return face.Sending(errOnlySignatures)
}

func send(w http.ResponseWriter, contentType string, p []byte) error {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(p)))
	_, _ = w.Write(p) // fails only if the client has left
	return nil
}

func sendJSON(w http.ResponseWriter, contentType string, v any) error {
	p, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return send(w, contentType, p)
}

// problem is an error in the form of the distribution API.
type problem struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Detail  string `json:"detail,omitempty"`

	status int
}

// problemOf returns the description of an error for clients.
func problemOf(err error) problem {
	p := problem{Message: err.Error(), status: face.StatusOf(err)}
	var missing *store.NotFoundError
	var signature *sigstore.InvalidError
	switch {
	case errors.Is(err, hub.ErrPacking):
		p.status, p.Code, p.Detail = http.StatusServiceUnavailable, "UNAVAILABLE", hub.PackingDetail
	case errors.Is(err, hub.ErrNoBlob):
		p.status, p.Code = http.StatusNotFound, "BLOB_UNKNOWN"
	case errors.Is(err, errNoManifest):
		p.status, p.Code = http.StatusNotFound, "MANIFEST_UNKNOWN"
	case errors.Is(err, errNoRoute):
		p.status, p.Code = http.StatusNotFound, "UNSUPPORTED"
	case errors.Is(err, errNoUpload):
		p.status, p.Code = http.StatusNotFound, "BLOB_UPLOAD_UNKNOWN"
	case errors.Is(err, errDigest):
		p.status, p.Code = http.StatusBadRequest, "DIGEST_INVALID"
	case errors.As(err, &signature):
		p.status, p.Code = http.StatusBadRequest, "MANIFEST_INVALID"
	case errors.Is(err, errOnlySignatures):
		p.status, p.Code = http.StatusMethodNotAllowed, "UNSUPPORTED"
	case errors.As(err, &missing):
		p.Code = "NAME_UNKNOWN"
	case p.status == http.StatusUnauthorized:
		p.Code = "UNAUTHORIZED"
	case p.status == http.StatusForbidden:
		p.Code = "DENIED"
	case p.status == http.StatusServiceUnavailable:
		p.Code = "UNAVAILABLE"
	default:
		p.Code = "UNKNOWN"
	}
	return p
}

// fail sends the answer for an error.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	s.face.FailAs(w, r, err, problemOf(err).status, func(w http.ResponseWriter, err error) {
		p := problemOf(err)
		body, _ := json.Marshal(map[string][]problem{"errors": {p}}) // never fails, because it has only text
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		if p.status == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", "1")
		}
		w.WriteHeader(p.status)
		_, _ = w.Write(body) // fails only if the client has left
	})
}
