package embedded

import (
	"bytes"
	"errors"
	"testing"
)

func TestOpen(t *testing.T) {
	for _, name := range []string{"no-such-binary", "", "../embedded.go", ".."} {
		if _, err := Open(name); !errors.Is(err, ErrNotBuiltIn) {
			t.Errorf("%q: got %v, want ErrNotBuiltIn", name, err)
		}
	}
	for _, name := range []string{Machined, VMM, Agent, Net, Unpack, Diff, SFTP, SSH} {
		data, err := Open(name)
		switch {
		case errors.Is(err, ErrNotBuiltIn): // happens in a `go test` without scripts/build
		case err != nil:
			t.Error(err)
		case !bytes.HasPrefix(data, []byte("\x7fELF")):
			t.Errorf("%s is not an ELF file", name)
		}
	}
}
