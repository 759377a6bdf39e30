package registry

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/sys/unix"
)

// A credential helper that hangs does not delay a request after the context of the request has
// ended. When the helper has ended, the keychain answers again.
func TestHelperHangs(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	helper := "#!/bin/sh\necho asked >>" + dir + "/asked\nread x <" + fifo + "\n" +
		`echo '{"Username": "me", "Secret": "secret"}'` + "\n"
	config := `{"credHelpers": {"registry.example": "hangs"}}`
	if err := errors.Join(unix.Mkfifo(fifo, 0o600), os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600),
		os.WriteFile(filepath.Join(dir, "docker-credential-hangs"), []byte(helper), 0o700)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", dir)
	t.Setenv("DOCKER_CONFIG", dir)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	r, err := name.NewRegistry("registry.example")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			_, err := authn.Resolve(ctx, Keychain{}, r)
			failed <- err
		}()
		for asked := false; !asked; time.Sleep(time.Millisecond) { // only the first question reaches the helper
			_, err := os.Stat(filepath.Join(dir, "asked"))
			asked = err == nil
		}
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Errorf("with a helper that hangs: %v", err)
		}
	}
	w, err := os.OpenFile(fifo, os.O_RDWR, 0) // opens at once, and lets the helper end
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := w.WriteString("go\ngo\ngo\ngo\n"); err != nil {
		t.Fatal(err)
	}
	auth, err := authn.Resolve(t.Context(), Keychain{}, r)
	if err != nil {
		t.Fatal(err)
	}
	c, err := authn.Authorization(t.Context(), auth)
	if err != nil || c.Username != "me" || c.Password != "secret" {
		t.Errorf("%+v, %v", c, err)
	}
}
