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

// Tokens of a sandbox, see auth.Keys. The one lets in to the agent, the other to the sandbox's own
// servers and the code interpreter. Both can be computed and so are kept nowhere.
const (
	accessToken  = "e2b access"
	trafficToken = "e2b traffic"
)

// signatureSize is "v1_" and a SHA-256 in base64 without padding.
const signatureSize = 3 + 43

// signature returns what permits an operation on a file: the hash of path, operation, user, token
// and, if it expires, the second it does.
func signature(q url.Values, operation, token string) string {
	parts := []string{q.Get("path"), operation, q.Get("username"), token}
	if end := q.Get("signature_expiration"); end != "" {
		parts = append(parts, end)
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, ":")))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// operationOf returns what a request does with a file.
func operationOf(r *http.Request) string {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return "read"
	}
	return "write"
}

// isSigned reports whether a query has the signature that a sandbox's token makes.
func (a *Server) isSigned(r *http.Request, q url.Values, id string) bool {
	want := signature(q, operationOf(r), a.Keys.Token(accessToken, id))
	return subtle.ConstantTimeCompare([]byte(q.Get("signature")), []byte(want)) == 1
}

// checkSignature refuses a request to a file without a signature that holds.
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

// signer returns the sandbox whose token signed a request to a file that names none, or "": where
// all sandboxes share one address, such a URL has nothing else to tell them apart. To look takes
// hashes for every sandbox, so it is done only as often as strangers may come to one.
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
