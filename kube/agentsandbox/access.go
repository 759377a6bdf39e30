package agentsandbox

import (
	"context"
	"crypto/sha256"
	"net/http"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	kube "sigs.k8s.io/controller-runtime/pkg/client"
)

// Bounds of access.
const (
	maxKept   = 4096             // remembered grants
	keptFor   = 10 * time.Second // a right that was taken away ends after this time
	maxBearer = 16 << 10         // bytes of a token
)

// access decides who may use a sandbox. It knows no users: the API server authenticates the token
// of a request, and RBAC must grant its user the verb create for sandboxes/exec of the group
// agents.x-k8s.io.
type access struct {
	kube.Client

	mu   sync.Mutex
	kept map[grant]kept
}

// grant is a right of the holder of a token. It has only a digest of the token.
type grant struct {
	token           [sha256.Size]byte
	namespace, name string
}

type kept struct {
	user  string
	until time.Time
}

// allow returns the user of a request who may use a sandbox. Otherwise it returns the HTTP status
// and the text of the answer.
func (a *access) allow(ctx context.Context, r *http.Request, namespace, name string) (user string, status int,
	text string) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" || len(token) > maxBearer {
		return "", http.StatusUnauthorized, "want the header Authorization: Bearer TOKEN with a token of the Kubernetes API"
	}
	g := grant{sha256.Sum256([]byte(token)), namespace, name}
	if user, ok := a.remembered(g); ok {
		return user, 0, ""
	}
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	if err := a.Create(ctx, review); err != nil {
		return "", http.StatusServiceUnavailable, "the Kubernetes API cannot check the token now"
	}
	if !review.Status.Authenticated || review.Status.User.Username == "" {
		return "", http.StatusUnauthorized, "the Kubernetes API does not know the token"
	}
	u := review.Status.User
	extra := map[string]authorizationv1.ExtraValue{}
	for name, values := range u.Extra {
		extra[name] = authorizationv1.ExtraValue(values)
	}
	may := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: u.Username, Groups: u.Groups, UID: u.UID, Extra: extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{Group: sandboxKind.Group, Version: version,
			Resource: "sandboxes", Subresource: "exec", Verb: "create", Namespace: namespace, Name: name}}}
	if err := a.Create(ctx, may); err != nil {
		return "", http.StatusServiceUnavailable, "the Kubernetes API cannot check the user's rights now"
	}
	if !may.Status.Allowed || may.Status.Denied {
		return "", http.StatusForbidden, "the user may not use this sandbox: RBAC must grant the verb create for " +
			"sandboxes/exec of the group agents.x-k8s.io in the namespace " + namespace
	}
	a.remember(g, u.Username)
	return u.Username, 0, ""
}

func (a *access) remembered(g grant) (string, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k, ok := a.kept[g]
	return k.user, ok && time.Now().Before(k.until)
}

func (a *access) remember(g grant, user string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.kept) >= maxKept {
		clear(a.kept)
	}
	a.kept[g] = kept{user, time.Now().Add(keptFor)}
}
