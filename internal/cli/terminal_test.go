package cli

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/forkd/forkd/client"
)

func TestDetachKeys(t *testing.T) {
	const p, q = "\x10", "\x11"
	for typed, want := range map[string]string{
		"plain":           "plain",
		"a" + p + "b":     "a" + p + "b",
		p + p + "b":       p + p + "b",
		"a" + q + p + "b": "a" + q + p + "b",
		"a" + p + q + "b": "a",
		p + p + q + "b":   p,
	} {
		for name, from := range map[string]io.Reader{"at once": strings.NewReader(typed), "byte by byte": iotest.OneByteReader(strings.NewReader(typed))} {
			detached := false
			got, err := io.ReadAll(&detachKeys{from: from, detach: func() { detached = true }})
			leaves := strings.Contains(typed, p+q)
			if string(got) != want || detached != leaves || leaves != errors.Is(err, client.ErrDetached) {
				t.Errorf("%q %s: %q, %v, detached %v", typed, name, got, err, detached)
			}
		}
	}
}
