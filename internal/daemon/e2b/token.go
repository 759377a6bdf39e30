package e2b

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"hash"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
)

// Purposes of a sandbox's tokens; see auth.Keys. accessToken gives access to the agent.
// trafficToken gives access to the sandbox's own servers and to the code interpreter. Both are
// derived from a key, so they are not stored.
const (
	accessToken  = "e2b access"
	trafficToken = "e2b traffic"
)

// signatureSize is the length of "v1_" and a SHA-256 in base64 without padding.
const signatureSize = 3 + 43

// Bounds on the parts of a signed URL that are hashed, in bytes.
const (
	maxSignedPath = 4096 // PATH_MAX
	maxSignedUser = 256
	maxExpiry     = 20 // digits of an int64
)

// claim is the signature in the query of a request, with the parameters that it signs. The
// signature is the hash of path, operation, user, token and, if the URL expires, the expiry in
// seconds, with colons between them.
type claim struct {
	signature string
	begun     hash.Cloner // state of the hash before the token is added
	expiry    string
}

// claimOf returns the claim of a request to a file, or an error if the URL has expired. It checks
// the length of the parameters before it hashes them.
func claimOf(r *http.Request, q url.Values) (*claim, error) {
	name, user := q.Get("path"), q.Get("username")
	c := &claim{signature: q.Get("signature"), expiry: q.Get("signature_expiration")}
	switch {
	case len(c.signature) != signatureSize:
		return nil, errUnsigned
	case len(name) > maxSignedPath:
		return nil, face.BadRequest("path: %d bytes: want at most %d", len(name), maxSignedPath)
	case len(user) > maxSignedUser:
		return nil, face.BadRequest("username: %d bytes: want at most %d", len(user), maxSignedUser)
	case len(c.expiry) > maxExpiry:
		return nil, errExpiry
	}
	if c.expiry != "" {
		at, err := strconv.ParseInt(c.expiry, 10, 64)
		if err != nil {
			return nil, errExpiry
		}
		if at < time.Now().Unix() {
			return nil, errExpired
		}
	}
	h := sha256.New()
	_, _ = io.WriteString(h, name+":"+operationOf(r)+":"+user+":") // writing to a hash never fails
	// All hashes of the standard library implement hash.Cloner.
	c.begun = h.(hash.Cloner)
	return c, nil
}

var (
	errUnsigned = face.NewError(http.StatusUnauthorized, "signature is missing or wrong")
	errExpiry   = face.NewError(http.StatusUnauthorized, "signature_expiration is not a number")
	errExpired  = face.NewError(http.StatusUnauthorized, "signature is already expired")
)

// isOf reports whether the signature was made with a token.
func (c *claim) isOf(token string) bool {
	h, err := c.begun.Clone()
	if err != nil {
		return false
	}
	_, _ = io.WriteString(h, token)
	if c.expiry != "" {
		_, _ = io.WriteString(h, ":"+c.expiry)
	}
	want := "v1_" + base64.RawStdEncoding.EncodeToString(h.Sum(nil))
	return subtle.ConstantTimeCompare([]byte(c.signature), []byte(want)) == 1
}

// operationOf returns the operation of a request on a file.
func operationOf(r *http.Request) string {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return "read"
	}
	return "write"
}

// checkSignature returns an error if the request has no valid signature made with the sandbox's
// token.
func (a *Server) checkSignature(r *http.Request, id string) error {
	c, err := claimOf(r, r.URL.Query())
	if err != nil {
		return err
	}
	if !c.isOf(a.Keys.Token(accessToken, id)) {
		return errUnsigned
	}
	return nil
}

// signer returns the sandbox whose token signed a request to a file. It is for requests that name
// no sandbox. At an address that all sandboxes share, only the signature identifies the sandbox of
// such a request. signer returns "" if no token matches. The search hashes a few bytes for each
// sandbox, so its rate is limited.
func (a *Server) signer(r *http.Request) (string, error) {
	if r.URL.Path != "/files" {
		return "", nil
	}
	q := r.URL.Query()
	if len(q.Get("signature")) != signatureSize {
		return "", nil
	}
	c, err := claimOf(r, q)
	if err != nil {
		return "", err
	}
	if err := a.Face.Strangers.Search(auth.PeerName(r.Context(), r.RemoteAddr)); err != nil {
		return "", err
	}
	found := ""
	defer func() { a.Face.Strangers.Searched(found != "") }()
	for _, id := range a.Face.Host.IDs() {
		if c.isOf(a.Keys.Token(accessToken, id)) {
			found = id
			break
		}
	}
	return found, nil
}
