package v1

import (
	"context"
	"net/http"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/host/atrest"
	"github.com/forkd/forkd/internal/host/tenancy"
)

// encryptSnapshots encrypts a snapshot and all snapshots that contain its data.
func (a *api) encryptSnapshots(r *http.Request) (apiv1.Family, error) {
	return a.family(r, (*tenancy.View).Encrypt)
}

// decryptSnapshots decrypts a snapshot and all snapshots that contain its data.
func (a *api) decryptSnapshots(r *http.Request) (apiv1.Family, error) {
	return a.family(r, (*tenancy.View).Decrypt)
}

// shredSnapshots destroys the keys of a snapshot and of all snapshots that contain its data, and
// deletes these snapshots.
func (a *api) shredSnapshots(r *http.Request) (apiv1.Family, error) {
	return a.family(r, (*tenancy.View).Shred)
}

func (a *api) family(r *http.Request,
	change func(*tenancy.View, context.Context, *atrest.Crypter, string) (atrest.Result, error)) (
	out apiv1.Family, err error) {
	tag := r.PathValue("tag")
	if err := checkTag(tag); err != nil {
		return out, err
	}
	res, err := change(a.view(r), r.Context(), a.Crypter, tag)
	return apiv1.Family{Tags: append([]string{}, res.Tags...), InClear: append([]string{}, res.Others...)}, err
}
