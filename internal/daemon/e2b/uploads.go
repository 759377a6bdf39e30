package e2b

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/daemon/audit"
	v1 "github.com/forkd/forkd/internal/daemon/v1"
)

// A link for one archive of one build is signed, with a token for these: who sends the archive has
// no other.
const (
	uploadPurpose   = "e2b upload"
	uploadSignature = "signature"
	uploadBuild     = "build"
)

// uploadLink says whether the files of a step are there, and where they are to be sent.
func (a *api) uploadLink(w http.ResponseWriter, r *http.Request) error {
	b, err := a.findBuild(r, "")
	if err != nil {
		return err
	}
	hash := r.PathValue("hash")
	link := url.URL{Scheme: "http", Host: r.Host, Path: "/templates/" + b.Template + "/files/" + hash,
		RawQuery: url.Values{uploadBuild: {b.ID}, uploadSignature: {a.Keys.Token(uploadPurpose, b.ID+"/"+hash)}}.Encode()}
	if r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https" {
		link.Scheme = "https"
	}
	return writeJSON(w, http.StatusCreated, map[string]any{"present": a.Builder.Has(b, hash), "url": link.String()})
}

// uploadRoute is the pattern of a signed link.
const uploadRoute = "PUT /templates/{id}/files/{hash}"

// Times of the sending of an archive: the whole is what the SDKs give it.
const (
	uploadTimeout = time.Hour
	uploadStall   = time.Minute
)

// upload takes an archive from who has a signed link.
func (a *api) upload(w http.ResponseWriter, r *http.Request) {
	e := audit.From(r.Context())
	e.Who, e.Route = audit.SignedURL, uploadRoute
	err := a.takeArchive(w, r)
	if err != nil {
		v1.LetGo(w)
		a.fail(w, r, err)
		return
	}
	w.WriteHeader(http.StatusOK)
}

func (a *api) takeArchive(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	id, hash := q.Get(uploadBuild), r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	if !a.Keys.Is(uploadPurpose, id+"/"+hash, q.Get(uploadSignature)) {
		return &failure{http.StatusUnauthorized, "signature is missing or wrong: ask for a new link"}
	}
	select {
	case a.uploads <- struct{}{}:
	default:
		return errTooMany
	}
	defer func() { <-a.uploads }()
	rc := http.NewResponseController(w)
	defer rc.SetReadDeadline(time.Time{})
	body := &steady{body: r.Body, rc: rc, end: time.Now().Add(uploadTimeout)}
	return a.Builder.Upload(id, hash, r.ContentLength, body)
}

// steady is the body of a request that has to come on.
type steady struct {
	body interface{ Read([]byte) (int, error) }
	rc   *http.ResponseController
	end  time.Time
}

// Read implements io.Reader.
func (s *steady) Read(p []byte) (int, error) {
	by := time.Now().Add(uploadStall)
	if by.After(s.end) {
		by = s.end
	}
	_ = s.rc.SetReadDeadline(by) // a connection without deadlines is a test's
	return s.body.Read(p)
}
