package hub

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/registry"
)

// Remote names a snapshot in a registry.
type Remote struct {
	ref   name.Reference
	field string          // field of the request that contains the reference, for errors
	login *registry.Login // nil: the login stored by `docker login` for the daemon's user
	trust Policy          // empty: the daemon's policy

	mirrors []Remote // see Or
	reuse   bool     // see Reusing

	transient bool // see Transient
}

// repoPattern is the form of names of repositories (OCI distribution spec, "Pulling manifests").
var repoPattern = regexp.MustCompile(`^[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*$`)

// ParseRemote parses REGISTRY/NAME:TAG and REGISTRY/NAME@DIGEST. The registry and the tag have no
// defaults, so that no snapshot is published by mistake. Errors name the field of the request that
// contains the reference.
func ParseRemote(field, reference string) (Remote, error) {
	ref, err := name.ParseReference(reference, name.StrictValidation)
	if err != nil || !repoPattern.MatchString(ref.Context().RepositoryStr()) {
		return Remote{}, invalid.Errorf(field, "%.200q: want REGISTRY/NAME:TAG or REGISTRY/NAME@DIGEST, "+
			"such as ghcr.io/owner/name:1", reference)
	}
	return Remote{ref: ref, field: field}, nil
}

// tag returns the tag that a snapshot is written to.
func (r Remote) tag() (name.Tag, error) {
	t, ok := r.ref.(name.Tag)
	if !ok {
		return t, invalid.Errorf(r.field, "%.200q: want a tag, REGISTRY/NAME:TAG: the snapshot decides its digest",
			r.ref.String())
	}
	return t, nil
}

// Registry returns the name of the registry, as registry.Name does.
func (r Remote) Registry() string { return r.ref.Context().RegistryStr() }

// With returns r with credentials for its registry.
func (r Remote) With(l *registry.Login) Remote { r.login = l; return r }

// Under returns r with a policy for its snapshots. This policy replaces the daemon's policy.
func (r Remote) Under(p Policy) Remote { r.trust = p; return r }

// Transient returns r for the pull of a sandbox's suspended state. Clients cannot fork the new
// snapshot, and it is deleted when the store no longer pins it.
func (r Remote) Transient() Remote { r.transient = true; return r }

// At returns the reference of the artifact with a digest.
func (r Remote) At(digest string) string { return r.ref.Context().Name() + "@" + digest }

// RegistryError reports that a registry has refused a request, or that its answer is not usable.
type RegistryError struct {
	Registry string
	Status   int // HTTP status of the answer; 0 if there was none
	Err      error
}

func (e *RegistryError) Error() string { return "registry " + e.Registry + ": " + e.Err.Error() }

func (e *RegistryError) Unwrap() error { return e.Err }

var (
	errSlow = errors.New("the transfer is too slow: less than 64 KiB per second in ten minutes")
	errLong = errors.New("the transfer takes longer than a day; another try continues with the remaining files")
	errLed  = errors.New("it redirects an upload twice")
	// The error of a slow source that has a mirror. The request is not repeated, because the mirror
	// is used instead.
	errLeft = errors.New("it is too slow: it has sent less than 64 KiB per second, or no answer, for some seconds")
)

// wire is the transport to one registry, and to the servers that this registry names for tokens,
// uploads and blobs. The registry is not trusted: it may stall, send without end, and redirect to
// any server.
type wire struct {
	base  http.RoundTripper // for requests to other servers
	own   http.RoundTripper // for requests to the registry itself
	home  string            // the registry, as HOST or HOST:PORT
	stall time.Duration     // see registry.Impatient
	leave time.Duration     // the same for requests to a source that has a mirror, see mirrorKey
}

const (
	maxHeader = 64 << 10             // maximum size of an answer's header, in bytes
	maxAnswer = artifact.MaxManifest // maximum size of an answer other than a blob, in bytes
)

// newBase returns the transport that all wires use. It does not decompress answers, because the
// digest and size of a blob are those of the compressed bytes.
func newBase() *http.Transport {
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:    10 * time.Second,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2:      true,
		MaxIdleConnsPerHost:    maxBlobs,
		IdleConnTimeout:        30 * time.Second,
		MaxResponseHeaderBytes: maxHeader,
		DisableCompression:     true,
	}
}

// baseOf returns the transport for requests to a registry itself. It has the certificates for this registry.
func (h *Hub) baseOf(host string) (http.RoundTripper, error) {
	c, err := registry.Certs(h.cfg.Certs, host)
	if c == nil {
		return h.base, err
	}
	t := newBase()
	t.TLSClientConfig = c
	return t, nil
}

// check refuses requests without TLS to other hosts, and requests that registry.Check refuses. It
// refuses the second redirect of an upload, because a copy fetches the blob again for each
// redirect.
func (w wire) check(r *http.Request) error {
	if r.Method == http.MethodPatch && r.Response != nil && r.Response.Request.Response != nil {
		return errLed
	}
	if r.URL.Scheme == "http" && !registry.IsLoopback(r.URL.Hostname()) {
		return fmt.Errorf("%s has no TLS, which only registries at addresses of this host may lack", r.URL.Host)
	}
	return registry.Check(r, w.home)
}

type blobKey struct{}

// mirrorKey is the key of a context whose requests may be slow only for a short time, because another
// source has the same blobs.
type mirrorKey struct{}

// RoundTrip implements http.RoundTripper. If the registry cannot say whether it has a blob (HEAD
// fails with status 500), RoundTrip answers that the registry lacks the blob. So a push sends the
// blob.
func (w wire) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := w.check(r); err != nil {
		return nil, err
	}
	base := w.base
	if r.URL.Host == w.home {
		base = w.own
	}
	via := registry.Impatient{Base: base, Stall: w.stall}
	if r.Context().Value(mirrorKey{}) != nil {
		via.Stall, via.Least, via.Err = w.leave, int64(leastRate*w.leave.Seconds()), errLeft
	}
	resp, err := via.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if r.Method == http.MethodHead && resp.StatusCode == http.StatusInternalServerError {
		// If a registry was killed while it stored a blob, it may give this answer until it gets
		// the blob again.
		resp.StatusCode = http.StatusNotFound
	}
	if r.Context().Value(blobKey{}) == nil || resp.StatusCode >= http.StatusMultipleChoices {
		resp.Body = registry.Bound(resp.Body, "answer", maxAnswer)
	}
	return resp, nil
}

// conn is a connection to the repository of a snapshot, with credentials.
type conn struct {
	http.Client
	Remote
	tries int
	wait  time.Duration // wait before the second try; doubles before each further try
	small int64         // see smallBlob

	proofsTime time.Duration // proofsTime, except in tests

	roomEvery int64 // see fetching

	patience time.Duration             // maximum time to wait for a daemon that packs a snapshot
	packing  atomic.Pointer[time.Time] // when the source first answered that it packs the snapshot; nil: never
}

// dial finds out how a registry authenticates, and gets a token for the scopes if the registry
// requires one.
func (h *Hub) dial(ctx context.Context, r Remote, scopes ...string) (*conn, error) {
	repo := r.ref.Context()
	c := &conn{Remote: r, tries: h.tries, wait: h.retryWait, small: h.small,
		proofsTime: h.proofsTime, roomEvery: h.roomEvery, patience: h.patience}
	var auth authn.Authenticator
	var err error
	if r.login != nil {
		auth = r.login.Authenticator()
	} else if auth, err = authn.Resolve(ctx, registry.Keychain{}, repo); err != nil {
		return nil, c.failed(fmt.Errorf("read Docker's configuration of the daemon's user: %w", err))
	}
	own, err := h.baseOf(repo.RegistryStr())
	if err != nil {
		return nil, fmt.Errorf("read the certificates of the registry %s: %w", repo.RegistryStr(), err)
	}
	w := wire{h.base, own, repo.RegistryStr(), h.stall, h.leave}
	err = c.again(ctx, func() error {
		c.Transport, err = transport.NewWithContext(ctx, repo.Registry, auth, w, scopes)
		return err
	})
	return c, c.failed(err)
}

// pusher returns the client for uploads. The client repeats failed requests as c does.
func (c *conn) pusher() (*remote.Pusher, error) {
	return remote.NewPusher(remote.WithTransport(c.Transport), remote.WithRetryPredicate(isTemporary),
		remote.WithRetryBackoff(remote.Backoff{Duration: c.wait, Factor: 2, Steps: c.tries}))
}

// again(ctx, try) calls try until it succeeds, returns an error that is not temporary, or has
// failed c.tries times. Tries do not count while the source is a daemon that packs the snapshot.
func (c *conn) again(ctx context.Context, try func() error) error {
	for n := 1; ; n++ {
		err := try()
		if c.awaits(err) {
			n = 1
		}
		if err == nil || n >= c.tries || !isTemporary(err) {
			return err
		}
		if err := c.pause(ctx, n); err != nil {
			return err
		}
	}
}

// pause waits after the n-th failed try.
func (c *conn) pause(ctx context.Context, n int) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(c.wait << (n - 1)):
		return nil
	}
}

// PackingDetail is the detail of the error that a daemon returns while it packs a snapshot (see
// ErrPacking).
const PackingDetail = "packing"

// isPacking reports whether the source is a daemon that packs the snapshot.
func isPacking(err error) bool {
	var status *transport.Error
	return errors.As(err, &status) && status.StatusCode == http.StatusServiceUnavailable && len(status.Errors) == 1 &&
		status.Errors[0].Detail == PackingDetail
}

// awaits reports whether to wait because the source is a daemon that is packing the snapshot. All
// requests of a connection together wait at most c.patience. A limit for each request would let a
// hostile source make every request wait that long.
func (c *conn) awaits(err error) bool {
	if !isPacking(err) {
		return false
	}
	now := time.Now()
	c.packing.CompareAndSwap(nil, &now)
	return now.Sub(*c.packing.Load()) < c.patience
}

// isTemporary reports whether a request may succeed later.
func isTemporary(err error) bool {
	var status *transport.Error
	var dns *net.DNSError
	var opened *net.OpError
	var other *RegistryError
	switch {
	case errors.As(err, &other): // the source of a copy has failed, after all tries
		return false
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return false
	case errors.As(err, &status):
		return status.Temporary()
	case errors.As(err, &dns):
		return dns.IsTemporary
	case errors.Is(err, registry.ErrStalled):
		return true
	case errors.As(err, &opened):
		return true
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// Limits on how much of a registry's answer an error quotes.
const (
	maxDiagnostics = 3   // number of diagnostics
	maxDiagnostic  = 200 // bytes of each diagnostic
	maxQuoted      = 300 // bytes of any other error
)

// failed returns the error of a request to the registry. It quotes neither bodies nor URLs: the
// registry may have redirected the request to a server that only this host can reach, and URLs may
// contain credentials.
func (c *conn) failed(err error) error {
	var own *RegistryError
	var bad *artifact.Error
	var file *fs.PathError
	var full roomError
	var untrusted *TrustError
	if err == nil || errors.As(err, &own) || errors.As(err, &untrusted) || errors.As(err, &bad) || errors.As(err, &file) ||
		errors.As(err, &full) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	out := &RegistryError{Registry: c.Registry(), Err: err}
	var status *transport.Error
	var to *url.Error
	switch {
	case errors.As(err, &status):
		out.Status = status.StatusCode
		text := fmt.Sprintf("%d %s", status.StatusCode, http.StatusText(status.StatusCode))
		for _, d := range status.Errors[:min(len(status.Errors), maxDiagnostics)] {
			text += fmt.Sprintf(", %.*q", maxDiagnostic, string(d.Code)+": "+d.Message)
		}
		out.Err = errors.New(text)
	default:
		for errors.As(err, &to) {
			err = to.Err
		}
		if text, cut := plain(err.Error()); cut {
			out.Err = errors.New(text)
		} else {
			out.Err = err
		}
	}
	return out
}

// plain returns the part of an error's text that may be quoted: the beginning of the first line,
// without URLs. It also reports whether this part differs from the text.
func plain(text string) (_ string, cut bool) {
	line, _, _ := strings.Cut(text, "\n")
	line = anyURL.ReplaceAllString(line, "…")
	line = strings.ToValidUTF8(line[:min(len(line), maxQuoted)], "?")
	return line, line != text
}

var anyURL = regexp.MustCompile(`"?[^\s"]*://[^\s]*`)

// endpoint returns the URL of a document in the repository.
func (c *conn) endpoint(kind, id string) url.URL {
	repo := c.ref.Context()
	return url.URL{Scheme: repo.Scheme(), Host: repo.RegistryStr(),
		Path: "/v2/" + repo.RepositoryStr() + "/" + kind + "/" + id}
}

// get requests a document, or the bytes from start to end of a blob. If end is 0, it requests the
// whole blob. The caller must close the body of the answer.
func (c *conn) get(ctx context.Context, u url.URL, accept string, start, end int64) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	want := []int{http.StatusOK}
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	if end > 0 {
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", start, end-1))
		want = append(want, http.StatusPartialContent)
	}
	resp, err := c.Do(r)
	if err != nil {
		return nil, err
	}
	if err := transport.CheckError(resp, want...); err != nil {
		resp.Body.Close()
		return nil, err
	}
	return resp, nil
}
