package face

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"

	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/loglimit"
)

// A client whose requests fail cannot fill the daemon's log. Errors that guests and clients cause
// are not logged. The lines about other errors are short, and their rate is limited.
func TestLinesAboutFailedRequests(t *testing.T) {
	var out bytes.Buffer
	f := New(Config{Log: slog.New(slog.NewJSONHandler(&out, nil))})
	fail := func(err error) {
		f.Fail(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/v1/"+strings.Repeat("x", 8<<10), nil), err)
	}
	for _, err := range []error{ErrTooMany, ErrNoMemory, &agentclient.Error{Code: agentclient.CodeInternal},
		&agentclient.Error{Code: agentclient.CodeTimeout}, &agentclient.Error{Code: agentclient.CodeNoSpace},
		NewError(http.StatusNotFound, "x")} {
		if fail(err); out.Len() > 0 {
			t.Errorf("%v: %s", err, out.String())
			out.Reset()
		}
	}
	for _, err := range []error{errors.New(strings.Repeat("<", 8<<10)), fmt.Errorf("a disk: %w", syscall.ENOSPC)} {
		if fail(err); out.Len() == 0 || out.Len() > 4<<10 {
			t.Errorf("%.100v: a line of %d bytes", err, out.Len())
		}
		out.Reset()
	}
	const most = 5
	f.failures.lines = loglimit.New(0, most)
	for range 2 * most {
		func() {
			defer func() {
				if err, _ := recover().(error); !errors.Is(err, http.ErrAbortHandler) {
					t.Error("the connection is not broken off")
				}
			}()
			fail(errors.New("x"))
			f.Abort(httptest.NewRequest(http.MethodGet, "/", nil), errors.New("x"))
		}()
	}
	if n := bytes.Count(out.Bytes(), []byte{'\n'}); n != most {
		t.Errorf("%d lines, want %d", n, most)
	}
}
