package e2b

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/daemon/face"
)

// Purposes of a sandbox's tokens; see auth.Keys. The first gives access to the agent, the second to
// the sandbox's own servers and the code interpreter. Both are derived, so they are not stored.
const (
	accessToken  = "e2b access"
	trafficToken = "e2b traffic"
)

// signatureSize is "v1_" and a SHA-256 in base64 without padding.
const signatureSize = 3 + 43

// signature returns the signature that permits an operation on a file: the hash of path, operation,
// user, token and, if it expires, the expiry in seconds.
func signature(q url.Values, operation, token string) string {
	parts := []string{q.Get("path"), operation, q.Get("username"), token}
	if end := q.Get("signature_expiration"); end != "" {
		parts = append(parts, end)
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, ":")))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// operationOf returns the operation of a request on a file.
func operationOf(r *http.Request) string {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return "read"
	}
	return "write"
}

// isSigned reports whether a query is signed with the sandbox's token.
func (a *Server) isSigned(r *http.Request, q url.Values, id string) bool {
	want := signature(q, operationOf(r), a.Keys.Token(accessToken, id))
	return subtle.ConstantTimeCompare([]byte(q.Get("signature")), []byte(want)) == 1
}

// checkSignature refuses a request to a file without a valid signature.
func (a *Server) checkSignature(r *http.Request, id string) error {
	q := r.URL.Query()
	if !a.isSigned(r, q, id) {
		return face.NewError(http.StatusUnauthorized, "signature is missing or wrong")
	}
	if end := q.Get("signature_expiration"); end != "" {
		at, err := strconv.ParseInt(end, 10, 64)
		if err != nil {
			return face.NewError(http.StatusUnauthorized, "signature_expiration is not a number")
		}
		if at < time.Now().Unix() {
			return face.NewError(http.StatusUnauthorized, "signature is already expired")
		}
	}
	return nil
}

// signer returns the sandbox whose token signed a request to a file, for requests that name no
// sandbox. At an address that all sandboxes share, the signature is all that tells such URLs apart.
// It returns "" if no token matches. The search hashes once per sandbox, so its rate is limited to
// that of strangers' requests to one sandbox.
func (a *Server) signer(r *http.Request) (string, error) {
	if r.URL.Path != "/files" {
		return "", nil
	}
	q := r.URL.Query()
	if len(q.Get("signature")) != signatureSize {
		return "", nil
	}
	if err := a.Face.Strangers.Enter("", ""); err != nil {
		return "", err
	}
	for _, id := range a.Face.Host.IDs() {
		if a.isSigned(r, q, id) {
			return id, nil
		}
	}
	return "", nil
}
