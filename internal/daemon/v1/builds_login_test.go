package v1_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
)

// A build fetches a private image with the client's credentials, which the daemon never stores. A
// build without these credentials is refused even if there is a cached snapshot of the image.
func TestPrivateImagesNeedTheirCredentials(t *testing.T) {
	r := start(t, apirig.Options{})
	const password = "secret" // password of the test's registry
	auth := map[string]client.RegistryAuth{"registry.example": {Username: "me", Password: password}}
	for _, text := range []string{"FROM " + apirig.PrivateImage + "\nRUN true\n",
		"FROM " + apirig.Image + "\nCOPY --from=" + apirig.PrivateImage + " /etc/passwd /tmp/copied-from-image\n"} {
		req := client.BuildRequest{Tag: "made", Dockerfile: text, Replace: true, RegistryAuth: auth}
		_, log, err := built(t, r.Client, req, nil)
		if err != nil {
			t.Fatalf("%v\n%s", err, log)
		}
		if res, log, err := built(t, r.Client, req, nil); err != nil || res.Run != 0 {
			t.Errorf("again: %+v, %v\n%s", res, err, log)
		}
		for _, other := range []map[string]client.RegistryAuth{nil, {"registry.example": {Username: "me", Password: "x"}},
			{"other.example": auth["registry.example"]}, {"registry.example:5000": auth["registry.example"]}} {
			req.RegistryAuth = other
			if _, _, err := built(t, r.Client, req, nil); !client.IsStatus(err, http.StatusBadRequest) ||
				!strings.Contains(err.Error(), "wants another password") {
				t.Errorf("with the credentials %v: %v", other, err)
			}
		}
	}
	err := filepath.WalkDir(filepath.Dir(r.TokenFile), func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			var text []byte
			if text, err = os.ReadFile(path); bytes.Contains(text, []byte(password)) {
				t.Errorf("%s has the password", path)
			}
		}
		if errors.Is(err, fs.ErrNotExist) { // the daemon moves layers at the same time
			return nil
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// Credentials that are invalid for every registry are refused with the name of their field.
func TestWrongRegistryAuth(t *testing.T) {
	r := start(t, apirig.Options{})
	long := strings.Repeat("x", 64<<10+1)
	for want, auths := range map[string]map[string]client.RegistryAuth{
		"not the name of a registry": {"https://ghcr.io": {RegistryToken: "x"}},
		"more than 64 KiB":           {"ghcr.io": {RegistryToken: long}},
		"given twice":                {"docker.io": {RegistryToken: "x"}, "index.docker.io": {RegistryToken: "y"}},
	} {
		_, err := r.Build(context.WithoutCancel(t.Context()), client.BuildRequest{Tag: "x", Dockerfile: "FROM x",
			RegistryAuth: auths}, nil, nil)
		if !client.IsStatus(err, http.StatusBadRequest) || !strings.Contains(err.Error(), "registry_auth") ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
}
