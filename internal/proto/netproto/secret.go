package netproto

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/forkd/forkd/internal/proto/codec"
)

// Bounds on the secrets of one sandbox.
const (
	MaxSecrets = 16
	MaxValue   = 4 << 10 // bytes; servers accept 8 KiB of headers
)

// Secret is a header that forkd-net sets in the requests of a sandbox to an HTTPS server. The guest
// does not know the value of the header.
type Secret struct {
	Host   string // name of the server, in the same form as in rules
	Header string
	Value  Hidden
}

// Hidden is a text that cannot be printed to logs, errors or JSON by accident. Code must convert it
// to a string to get its value.
type Hidden string

// Format implements fmt.Formatter, for every verb.
func (Hidden) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "[hidden]") }

// MarshalText returns an error. Code that must store the value has a separate type for it.
func (Hidden) MarshalText() ([]byte, error) { return nil, errors.New("a secret is not to be encoded") }

// ParseSecret parses a secret in the API's form. An empty value means that the sandbox keeps its
// present value of this secret. Errors are *FieldError and do not quote the value.
func ParseSecret(host, header, value string) (Secret, error) {
	rule, err := ParseRule(host)
	switch {
	case err != nil:
		return Secret{}, &FieldError{"host", err.Error()}
	case !rule.IsName() || rule.Below || rule.HasPorts() || rule.Protocol != AnyProtocol:
		return Secret{}, &FieldError{"host", fmt.Sprintf("%q: want the name of one server, which is reached at port 443",
			host)}
	case !httpguts.ValidHeaderFieldName(header) || len(header) > 100:
		return Secret{}, &FieldError{"header", fmt.Sprintf("%.100q is no name of a header: want one such as Authorization",
			header)}
	case slices.Contains(framing, strings.ToLower(header)):
		return Secret{}, &FieldError{"header", header + " says how a request is carried, and cannot be set"}
	case len(value) > MaxValue:
		return Secret{}, &FieldError{"value", fmt.Sprintf("has %d bytes, at most %d", len(value), MaxValue)}
	case !httpguts.ValidHeaderFieldValue(value) || strings.TrimSpace(value) != value:
		return Secret{}, &FieldError{"value",
			"has a line break, a control character, or space at its ends, which no header has"}
	}
	return Secret{rule.Name, header, Hidden(value)}, nil
}

// framing are the headers that forkd-net, like any proxy, must set itself (RFC 9110 §7.6.1, RFC
// 9112).
var framing = []string{"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer",
	"keep-alive", "expect", "proxy-connection", "proxy-authorization", "proxy-authenticate"}

// Is reports whether s and o set the same header for the same server.
func (s *Secret) Is(o *Secret) bool { return s.Host == o.Host && strings.EqualFold(s.Header, o.Header) }

// CheckSecrets returns a *FieldError if a list of secrets is invalid.
func CheckSecrets(secrets []Secret) error {
	if len(secrets) > MaxSecrets {
		return &FieldError{"secrets", fmt.Sprintf("has %d of them, at most %d", len(secrets), MaxSecrets)}
	}
	for i := range secrets {
		if slices.ContainsFunc(secrets[:i], func(s Secret) bool { return s.Is(&secrets[i]) }) {
			return &FieldError{fmt.Sprintf("secrets[%d]", i), "the same header of the same host occurs twice"}
		}
	}
	return nil
}

func appendSecrets(w *codec.Writer, secrets []Secret) {
	w.U32(uint32(len(secrets)))
	for i := range secrets {
		w.String(secrets[i].Host)
		w.String(secrets[i].Header)
		w.String(string(secrets[i].Value))
	}
}

func parseSecrets(r *codec.Reader) ([]Secret, error) {
	var secrets []Secret
	for range r.Count(12) {
		host, header, value := r.String(), r.String(), r.String()
		if r.Err() != nil {
			return nil, r.Err()
		}
		s, err := ParseSecret(host, header, value)
		if err == nil && value == "" {
			err = errors.New("no value")
		}
		if err != nil {
			return nil, fmt.Errorf("secrets[%d]: %w", len(secrets), err)
		}
		secrets = append(secrets, s)
	}
	return secrets, cmp.Or(r.Err(), CheckSecrets(secrets))
}

// Trust has the certificate authority with which forkd-net acts as a server towards guests. A
// descriptor of a file with the root certificates for real servers is sent along.
type Trust struct {
	Certificate []byte // DER
	Key         Hidden // DER, PKCS #8
}

// Append encodes m.
func (m *Trust) Append(w *codec.Writer) {
	w.Blob(m.Certificate)
	w.String(string(m.Key))
}

// Parse decodes m.
func (m *Trust) Parse(r *codec.Reader) error {
	*m = Trust{Certificate: append([]byte(nil), r.Blob()...), Key: Hidden(r.String())}
	return r.Err()
}
