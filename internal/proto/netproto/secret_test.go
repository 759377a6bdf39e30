package netproto

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/proto/codec"
)

func TestParseSecret(t *testing.T) {
	for _, c := range []struct{ host, header, value, field string }{
		{"API.example.com.", "Authorization", "Bearer s3cr3t", ""},
		{"a.b", "X-Api-Key", "", ""}, // keeps the sandbox's present value
		{"*.example.com", "Authorization", "s3cr3t", "host"},
		{"a.b:443", "Authorization", "s3cr3t", "host"},
		{"tcp/a.b", "Authorization", "s3cr3t", "host"},
		{"10.1.2.3", "Authorization", "s3cr3t", "host"},
		{"https://a.b/", "Authorization", "s3cr3t", "host"},
		{"", "Authorization", "s3cr3t", "host"},
		{"a.b", "", "s3cr3t", "header"},
		{"a.b", "X Y", "s3cr3t", "header"},
		{"a.b", "X\r\nY", "s3cr3t", "header"},
		{"a.b", "host", "s3cr3t", "header"},
		{"a.b", "Transfer-Encoding", "s3cr3t", "header"},
		{"a.b", "X", "s3cr3t\n", "value"},
		{"a.b", "X", " s3cr3t", "value"},
		{"a.b", "X", "s3cr3t\r\nY: z", "value"},
		{"a.b", "X", "s3cr3t\x00", "value"},
		{"a.b", "X", strings.Repeat("s3cr3t", MaxValue), "value"},
	} {
		s, err := ParseSecret(c.host, c.header, c.value)
		if c.field == "" {
			if err != nil || string(s.Value) != c.value || s.Header != c.header || s.Host == "" ||
				s.Host != strings.ToLower(s.Host) {
				t.Errorf("%+v: %+v, %v", c, s, err)
			}
			continue
		}
		e, ok := errors.AsType[*FieldError](err)
		if !ok || e.Field != c.field || strings.Contains(e.Error(), "s3cr3t") {
			t.Errorf("%+v: %v, want an error of %s without the value", c, err, c.field)
		}
	}
}

func TestSecretsAreFewAndDifferent(t *testing.T) {
	one := Secret{"a.b", "X", "y"}
	if err := CheckSecrets([]Secret{one, {"a.b", "Y", "y"}, {"c.d", "X", "y"}}); err != nil {
		t.Error(err)
	}
	if CheckSecrets([]Secret{one, {"a.b", "x", "z"}}) == nil || CheckSecrets(make([]Secret, MaxSecrets+1)) == nil {
		t.Error("too many secrets, or one twice, were accepted")
	}
	var w codec.Writer
	(&Attach{ID: "sb-1", Policy: Public(), Secrets: []Secret{{Host: "a.b", Header: "X"}}}).Append(&w)
	if new(Attach).Parse(codec.NewReader(w.Bytes())) == nil {
		t.Error("forkd-net took a secret without a value")
	}
}

// A secret that is printed by accident does not show its value.
func TestHiddenIsHidden(t *testing.T) {
	s := Secret{"a.b", "X", "s3cr3t"}
	var logged strings.Builder
	slog.New(slog.NewTextHandler(&logged, nil)).Info("x", "secret", s, "value", s.Value)
	slog.New(slog.NewJSONHandler(&logged, nil)).Info("x", "secret", s, "value", s.Value)
	texts := []string{logged.String()}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		texts = append(texts, fmt.Sprintf(verb, s), fmt.Sprintf(verb, s.Value), fmt.Sprintf(verb, []Secret{s}),
			fmt.Sprintf("%+v", []any{&s}), fmt.Sprintf(verb, Trust{Key: "s3cr3t"}))
	}
	for _, text := range texts {
		if strings.Contains(text, "s3cr3t") || strings.Contains(text, "733363723374") || strings.Contains(text, "115 51") {
			t.Error(text)
		}
	}
	if p, err := json.Marshal(s); err == nil {
		t.Errorf("JSON has %s", p)
	}
}
