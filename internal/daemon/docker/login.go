package docker

import (
	"net/http"
	"strings"

	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/registry"
)

// login asks a registry whether it accepts credentials, for docker login. The client stores them and
// sends them with its pulls; the daemon does not keep them.
func (s *Server) login(w http.ResponseWriter, r *http.Request) error {
	var given struct{ Username, Password, IdentityToken, RegistryToken, ServerAddress string }
	if err := readJSON(w, r, &given); err != nil {
		return err
	}
	l := registry.Login{User: given.Username, Password: given.Password, IdentityToken: given.IdentityToken,
		RegistryToken: given.RegistryToken}
	if l == (registry.Login{}) {
		return face.BadRequest("username: missing: want the credentials for a registry")
	}
	if err := s.Hub.CheckLogin(r.Context(), "serveraddress", hostOf(given.ServerAddress), l); err != nil {
		return err
	}
	return face.WriteJSON(w, r, http.StatusOK, struct{ Status, IdentityToken string }{"Login Succeeded", ""})
}

// hostOf returns the registry in an address as Docker's clients send it: HOST, HOST:PORT or a URL.
// Without an address, the result is Docker Hub.
func hostOf(address string) string {
	if address == "" {
		return strings.TrimSuffix(dockerHub, "/")
	}
	if _, rest, isURL := strings.Cut(address, "://"); isURL {
		address = rest
	}
	host, _, _ := strings.Cut(address, "/")
	return host
}
