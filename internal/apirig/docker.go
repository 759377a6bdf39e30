package apirig

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/docker"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/hub"
)

// openDocker sets r.Docker. The directory of the rig is dir.
func (r *Rig) openDocker(t T, shared *face.Face, registries *hub.Hub, dir string) {
	t.Helper()
	var err error
	r.Docker, err = docker.New(docker.Config{Face: shared, Builds: r.Steps, Hub: registries,
		Dir: filepath.Join(dir, "docker"), Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Docker.Close)
}

// ServeDocker serves the Docker Engine API on a unix socket until t ends, and returns the path of the
// socket.
func (r *Rig) ServeDocker(t T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "fkd") // a short path, as unix sockets need
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "docker.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: r.Docker, ConnContext: func(ctx context.Context, c net.Conn) context.Context {
		return face.WithConn(auth.WithPeer(ctx, c), c)
	}}
	go func() { _ = server.Serve(l) }() // returns when the server is closed
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Errorf("docker: %v", err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("docker: %v", err)
		}
	})
	return path
}
