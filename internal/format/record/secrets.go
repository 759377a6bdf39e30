package record

import (
	"bytes"
	"errors"
	"slices"
)

// Secrets is the record of the secrets of a sandbox's network.
type Secrets struct {
	List []Secret `json:"secrets"`
}

// Secret is a header that forkd-net adds to a sandbox's requests to one host.
type Secret struct {
	Host   string `json:"host"`
	Header string `json:"header"`
	Value  string `json:"value"` // whole header value, such as "Bearer …"
}

// secretsFile is the content of the record of secrets.
type secretsFile struct {
	Version int `json:"version"`
	Secrets
}

// EncodeSecrets returns the bytes of a record of secrets. It refuses a record that ParseSecrets would
// refuse.
func EncodeSecrets(s *Secrets) ([]byte, error) {
	if f := s.check(); f != nil {
		return nil, f
	}
	return encode(secretsFile{Version, *s})
}

// ParseSecrets decodes and checks a record of secrets. Version 0 was a JSON list. Errors are *Error
// with the given path. They quote names of fields and the record's version, but no other content.
// The file at the path is not opened.
func ParseSecrets(path string, p []byte) (*Secrets, error) {
	if text := bytes.TrimSpace(p); len(text) > 0 && text[0] == '[' {
		p = slices.Concat([]byte(`{"secrets":`), text, []byte("}"))
	}
	var now secretsFile
	var old Secrets
	if err := parse(path, p, &now, &old, func() { now.Secrets = old }); err != nil {
		var e *Error
		if errors.As(err, &e) && e.Field != "version" {
			e.Reason = "unknown, missing or damaged: " + otherForkd + ", or give the sandbox its secrets again"
		}
		return nil, err
	}
	if f := now.check(); f != nil {
		return nil, f.in(path)
	}
	return &now.Secrets, nil
}

func (s *Secrets) check() *fault {
	if len(s.List) == 0 {
		return wrong("secrets", "none: %s", otherForkd)
	}
	for _, one := range s.List {
		if one.Host == "" || one.Header == "" || one.Value == "" {
			return wrong("secrets", "one lacks its host, header or value: %s", otherForkd)
		}
	}
	return nil
}
