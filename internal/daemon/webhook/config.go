package webhook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/private"
)

// Bounds on a configuration.
const (
	maxHooks  = 16
	maxConfig = 64 << 10 // bytes of a file
)

// settings is a webhook in the configuration file.
type settings struct {
	Name       string        `json:"name"` // name of the webhook in the log
	URL        string        `json:"url"`
	SecretFile string        `json:"secret_file"` // absolute path; see parseSecrets
	CAFile     string        `json:"ca_file"`     // file of authorities for the server's certificate; empty: this host's
	Types      []string      `json:"types"`       // types of events to send; empty: all
	Labels     face.Selector `json:"labels"`      // labels that an event must have; empty: none

	plain bool // the server does not use TLS
}

// wrap returns an error that names the webhook and one of its fields.
func (s *settings) wrap(field string, err error) error {
	return fmt.Errorf("--webhooks: webhook %q: %s: %w", s.Name, field, err)
}

// load reads a configuration file. It refuses a file that other users can change.
func load(path string) ([]settings, error) {
	text, _, err := private.ReadFile(path, 0o022, maxConfig)
	if err == nil {
		var list []settings
		if list, err = parse(text); err == nil {
			return list, nil
		}
	}
	return nil, fmt.Errorf("--webhooks %s: %w", path, err)
}

// parse parses a configuration: a JSON object whose member "webhooks" is a list of settings.
func parse(text []byte) ([]settings, error) {
	var file struct {
		Webhooks []settings `json:"webhooks"`
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&file); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("text after the JSON object: remove it")
	}
	if n := len(file.Webhooks); n == 0 || n > maxHooks {
		return nil, fmt.Errorf("webhooks: %d of them: want 1 to %d", n, maxHooks)
	}
	names := map[string]bool{}
	for i := range file.Webhooks {
		s := &file.Webhooks[i]
		if err := s.check(); err != nil {
			return nil, fmt.Errorf("webhooks[%d].%w", i, err)
		}
		if names[s.Name] {
			return nil, fmt.Errorf("webhooks[%d].name %q: another webhook has this name", i, s.Name)
		}
		names[s.Name] = true
	}
	return file.Webhooks, nil
}

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

func (s *settings) check() error {
	if !validName.MatchString(s.Name) {
		return fmt.Errorf("name %.100q: want 1 to 64 letters, digits, '.', '_' and '-'", s.Name)
	}
	if err := s.checkURL(); err != nil {
		return err
	}
	if !filepath.IsAbs(s.SecretFile) {
		return fmt.Errorf("secret_file %q: want an absolute path", s.SecretFile)
	}
	if s.CAFile != "" && !filepath.IsAbs(s.CAFile) {
		return fmt.Errorf("ca_file %q: want an absolute path", s.CAFile)
	}
	for _, kind := range s.Types {
		if !event.Kind(kind).IsKnown() {
			return fmt.Errorf("types: %.100q is no type of event: docs/api.md lists them; missed is always sent", kind)
		}
	}
	return s.Labels.Check("labels")
}

// checkURL checks the URL and sets plain. Its errors do not quote the URL, because a path or query
// can be a secret.
func (s *settings) checkURL() error {
	u, err := url.Parse(s.URL)
	switch {
	case err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http":
		return errors.New("url: want https://HOST/PATH")
	case u.User != nil:
		return errors.New("url: it has a user or password: the signature proves the sender, so remove them")
	case u.Fragment != "":
		return errors.New("url: it has a fragment, which is not sent: remove it")
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		return errors.New("url: http is allowed for localhost and loopback addresses only: use https")
	}
	s.plain = u.Scheme == "http"
	return nil
}

// isLoopback reports whether a host name is localhost or a loopback address.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}
