package e2b

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/gate"
)

// A link for one archive of one build is signed, with a token for these: who sends the archive has
// no other.
const (
	uploadPurpose   = "e2b upload"
	uploadSignature = "signature"
	uploadBuild     = "build"
)

// uploadLink says whether the files of a step are there, and where they are to be sent.
func (a *Server) uploadLink(w http.ResponseWriter, r *http.Request) error {
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

// Bounds on the sending of an archive.
const (
	uploadTimeout = time.Hour   // of the whole, with the wait for a place: what the SDKs give it
	uploadStall   = time.Minute // in which the least has to come, or the rest
	uploadLeast   = 64 << 10    // bytes, and of a large archive
	uploadPart    = 120         // the 120th part: half the pace at which it is done in time
)

// upload takes an archive from who has a signed link.
func (a *Server) upload(w http.ResponseWriter, r *http.Request) {
	e := audit.From(r.Context())
	e.Who, e.Route = audit.SignedURL, uploadRoute
	err := a.takeArchive(w, r)
	if err != nil {
		face.LetGo(w)
		a.fail(w, r, err)
		return
	}
	w.WriteHeader(http.StatusOK)
}

func (a *Server) takeArchive(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	id, hash := q.Get(uploadBuild), r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	if !a.Keys.Is(uploadPurpose, id+"/"+hash, q.Get(uploadSignature)) {
		return face.NewError(http.StatusUnauthorized, "signature is missing or wrong: ask for a new link")
	}
	b, err := a.Builder.Waiting(id)
	if err != nil {
		return err
	}
	if !a.Face.Guard.Holds(b.Who, auth.Run) {
		return face.NewError(http.StatusUnauthorized, "the token that this link was made for is gone")
	}
	end := time.Now().Add(uploadTimeout)
	ctx, cancel := context.WithDeadline(r.Context(), end)
	defer cancel()
	leave, err := a.enterUpload(ctx, b.Who)
	if err != nil {
		return err
	}
	defer leave()
	rc := http.NewResponseController(w)
	defer rc.SetReadDeadline(time.Time{})
	body := newSteady(r.Body, rc, r.ContentLength, end)
	err = a.Builder.Upload(b, hash, r.ContentLength, body)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return face.NewError(http.StatusRequestTimeout,
			fmt.Sprintf("the archive comes too slowly: want %d KiB in %v, and all of it in %v",
				body.least>>10, uploadStall, uploadTimeout))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return face.BadRequest("the archive is shorter than its Content-Length says")
	}
	return err
}

// steady is the body of a request that has to come on, and not in drips. Only the time that it is
// waited for counts, not that which a slow disk takes.
type steady struct {
	body  io.Reader
	rc    interface{ SetReadDeadline(time.Time) error }
	end   time.Time
	stall time.Duration // in which least bytes have to come
	least int64

	left time.Duration // of stall
	got  int64         // bytes that have come in it
}

// newSteady returns the body of an archive of size bytes. How fast it has to come goes by its size,
// because room for all of it is taken from others when it begins.
func newSteady(body io.Reader, rc interface{ SetReadDeadline(time.Time) error }, size int64, end time.Time) *steady {
	return &steady{body: body, rc: rc, end: end, stall: uploadStall, least: max(uploadLeast, size/uploadPart)}
}

// Read implements io.Reader.
func (s *steady) Read(p []byte) (int, error) {
	if s.left == 0 || s.got >= s.least {
		s.left, s.got = s.stall, 0
	}
	start := time.Now()
	by := start.Add(s.left)
	if by.After(s.end) {
		by = s.end
	}
	_ = s.rc.SetReadDeadline(by) // a connection without deadlines is a test's
	n, err := s.body.Read(p)
	s.got += int64(n)
	s.left = max(s.left-time.Since(start), time.Nanosecond)
	return n, err
}

// enterUpload waits for a place for an archive of a client: each that waits has a connection, also when
// its client has left, which is seen only once the archive is read.
func (a *Server) enterUpload(ctx context.Context, who string) (leave func(), err error) {
	if leave, err = a.uploads.Wait(ctx, gate.Share{Key: who, Most: maxOwn}); err != nil {
		return nil, face.ErrTooMany
	}
	return leave, nil
}
