package cli

import (
	"errors"
	"testing"
)

// What a guest has put into an error does nothing to the terminal that it is shown on.
func TestErrorsAreForReading(t *testing.T) {
	got := printable(errors.New("guest: \x1b]52;c;ZXZpbA==\a\x1b[2Jdone\r\u202eñ\n\tnext"))
	const want = "guest: \ufffd]52;c;ZXZpbA==\ufffd\ufffd[2Jdone\ufffd\ufffdñ\n\tnext"
	if got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
