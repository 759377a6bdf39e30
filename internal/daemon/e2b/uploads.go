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
	"sync"
	"time"

	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/gate"
)

// The link for uploading an archive is signed with a token for that archive and its build. The
// client sends no other token.
const (
	uploadPurpose   = "e2b upload"
	uploadSignature = "signature"
	uploadBuild     = "build"
)

// uploadLink answers a request for the link for uploading the files of a step. The answer also says
// whether the daemon already has these files.
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
	return face.WriteJSON(w, r, http.StatusCreated,
		map[string]any{"present": a.Builder.Has(b, hash), "url": link.String()})
}

// uploadRoute is the pattern of a signed link.
const uploadRoute = "PUT /templates/{id}/files/{hash}"

// Bounds on the upload of an archive.
const (
	uploadTimeout = time.Hour   // limit for an upload, including the wait for a place; the SDKs have the same limit
	uploadStall   = time.Minute // in each such interval, max(uploadLeast, archive size / uploadPart) bytes must arrive
	uploadLeast   = 64 << 10    // bytes
	uploadPart    = 120         // the minimum pace is half the pace at which the archive completes in uploadTimeout
)

// upload receives an archive from a client with a signed link.
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
	auth.Identified(r.Context(), b.Who)
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

// steady is a request body that fails if it arrives below a minimum pace. Only time spent waiting
// for the client counts, not time spent on a slow disk.
type steady struct {
	body  io.Reader
	rc    interface{ SetReadDeadline(time.Time) error }
	end   time.Time
	stall time.Duration // in each interval of this length, a minimum number of bytes (least) must arrive
	least int64

	left time.Duration // remaining time of the present interval
	got  int64         // bytes received in the present interval

	reading sync.Mutex // held by Read
	mu      sync.Mutex
	// +checklocks:mu
	waits bool // a Read waits for the client
	// +checklocks:mu
	whole bool // the body has been read to its end
	// +checklocks:mu
	stopped bool
}

// newSteady wraps the body of an archive that has the given size in bytes. A larger archive must
// arrive at a higher pace, because disk space for all of it is reserved from the start.
func newSteady(body io.Reader, rc interface{ SetReadDeadline(time.Time) error }, size int64, end time.Time) *steady {
	return &steady{body: body, rc: rc, end: end, stall: uploadStall, least: max(uploadLeast, size/uploadPart)}
}

// Read implements io.Reader.
func (s *steady) Read(p []byte) (int, error) {
	s.reading.Lock()
	defer s.reading.Unlock()
	if s.left == 0 || s.got >= s.least {
		s.left, s.got = s.stall, 0
	}
	start := time.Now()
	by := start.Add(s.left)
	if by.After(s.end) {
		by = s.end
	}
	if err := s.begin(by); err != nil {
		return 0, err
	}
	n, err := s.body.Read(p)
	s.done(err)
	s.got += int64(n)
	s.left = max(s.left-time.Since(start), time.Nanosecond)
	return n, err
}

// errStopped is the error of a Read after stop.
var errStopped = errors.New("the rest of the request's body is not read")

func (s *steady) begin(by time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stopped:
		return errStopped
	case s.whole:
		return io.EOF
	}
	s.waits = true
	_ = s.rc.SetReadDeadline(by) // connections of some tests have no deadlines
	return nil
}

// done removes the deadline. After the last byte, the server reads in the background to notice that
// the client has left. A deadline would end this read, and with it the request.
func (s *steady) done(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits, s.whole = false, errors.Is(err, io.EOF)
	if !s.stopped {
		_ = s.rc.SetReadDeadline(time.Time{})
	}
}

// stop makes all Reads fail, including one that waits for the client. When it returns, no other
// goroutine reads, so the handler of the request may end. It reports whether the body has been read
// to its end.
func (s *steady) stop() (whole bool) {
	s.mu.Lock()
	if s.stopped = true; s.waits {
		_ = s.rc.SetReadDeadline(time.Unix(1, 0))
	}
	s.mu.Unlock()
	s.reading.Lock()
	defer s.reading.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.rc.SetReadDeadline(time.Time{})
	return s.whole
}

// enterUpload waits for a place for a client's archive. A waiting request holds a connection even
// after its client has left, because the daemon notices that the client has left only when it reads
// the archive.
func (a *Server) enterUpload(ctx context.Context, who string) (leave func(), err error) {
	if leave, err = a.uploads.Wait(ctx, gate.Share{Key: who, Most: maxOwn}); err != nil {
		return nil, face.ErrTooMany
	}
	return leave, nil
}
