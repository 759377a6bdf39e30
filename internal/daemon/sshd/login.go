package sshd

import (
	"cmp"
	"net/http"
	"regexp"
	"strings"

	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
)

// login is a client that has logged in.
type login struct {
	key         auth.SSHKey
	id, account string // id of the sandbox, and account in the guest; an empty account means the guest's default account
}

// errRefused refuses a login. It also refuses the requests of a client whose key was revoked after
// the login.
var errRefused = face.NewError(http.StatusForbidden, "the key is not registered, or no longer; see 'forkd ssh-key'")

// login decides whether a client may log in. The client has proved that it has the key, which is in
// the wire format. If the client may log in, the error is nil. If a known principal may not log in,
// login returns the refused login and the reason. The caller may send the reason to this client.
// Other clients always get errRefused.
func (s *Server) login(name string, key []byte) (refused *login, reason error) {
	account, id, wrong := parseLogin(name)
	reason = errRefused
	for _, k := range s.Keys.Find(key) {
		who, ok := s.Face.Guard.OfSSHKey(k)
		if !ok {
			continue
		}
		l := &login{k, id, account}
		if reason = cmp.Or(who.Need(auth.Run), wrong); reason == nil {
			if _, reason = s.Face.Host.For(who.Owner()).Sandbox(id); reason == nil {
				return l, nil
			}
		}
		refused = l
	}
	return refused, reason
}

// principal returns the present principal of a login, or an error if the principal has lost its
// rights.
func (s *Server) principal(l *login) (auth.Principal, error) {
	for _, k := range s.Keys.Find(l.key.Key.Marshal()) {
		if k.Who != l.key.Who || k.Token != l.key.Token {
			continue
		}
		if who, ok := s.Face.Guard.OfSSHKey(k); ok {
			return who, who.Need(auth.Run)
		}
	}
	return auth.Principal{}, errRefused
}

// accountForm matches the name of an account in a guest, and idForm matches the id of a sandbox.
var (
	accountForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}$`)
	idForm      = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`)
)

// parseLogin splits the name of a login: ID, or ACCOUNT+ID.
func parseLogin(name string) (account, id string, err error) {
	id = name
	if before, after, both := strings.Cut(name, "+"); both {
		if account, id = before, after; !accountForm.MatchString(account) {
			return "", "", face.BadRequest("login %.100q: want ID or ACCOUNT+ID", name)
		}
	}
	if !idForm.MatchString(id) {
		return "", "", face.BadRequest("login %.100q: want the id of a sandbox, as 'forkd ls' shows it, or ACCOUNT+ID", name)
	}
	return account, id, nil
}
