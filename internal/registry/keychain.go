package registry

import (
	"context"
	"fmt"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
)

// Keychain finds the credentials that `docker login` has stored for the daemon's user, as
// authn.DefaultKeychain does. A credential helper may hang, for example because it asks for a
// passphrase. So Keychain stops waiting after helperTime, and when the context ends.
type Keychain struct{}

// helperTime is the longest time to wait for credentials.
const helperTime = time.Minute

var errHelper = fmt.Errorf("a credential helper in Docker's configuration has not answered in %v", helperTime)

// While a goroutine asks authn.DefaultKeychain, this channel holds a value. That keychain cannot be
// interrupted, and answers one question at a time. So one helper that hangs leaves one goroutine,
// and not one for each question.
var asking = make(chan struct{}, 1)

// Resolve implements authn.Keychain.
func (k Keychain) Resolve(r authn.Resource) (authn.Authenticator, error) {
	return k.ResolveContext(context.Background(), r)
}

// ResolveContext implements authn.ContextKeychain.
func (Keychain) ResolveContext(ctx context.Context, r authn.Resource) (authn.Authenticator, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, helperTime, errHelper)
	defer cancel()
	select {
	case asking <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	var auth authn.Authenticator
	done := make(chan error, 1)
	go func() {
		defer func() { <-asking }()
		var err error
		auth, err = authn.DefaultKeychain.Resolve(r)
		done <- err
	}()
	select {
	case err := <-done:
		return auth, err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
