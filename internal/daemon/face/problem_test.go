package face

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/forkd/forkd/internal/host/admit"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/backlog"
	"github.com/forkd/forkd/internal/host/failure"
	"github.com/forkd/forkd/internal/host/hub"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
)

// Every code has a section in docs/errors.md. The field "type" of a problem is a link to the
// section about the problem's code.
func TestEveryCodeIsDocumented(t *testing.T) {
	p, err := os.ReadFile("../../../docs/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	for c, about := range problems {
		retry := ""
		if about.retry > 0 {
			retry = fmt.Sprintf(" %d s", int(about.retry.Seconds()))
		}
		row := fmt.Sprintf("| <a id=\"%s\"></a>`%s` | %d |%s | %s | %s |", c, c, about.status, retry, about.title, about.fix)
		if !strings.Contains(string(p), row) {
			t.Errorf("docs/errors.md lacks this row:\n%s", row)
		}
	}
	if rows := strings.Count(string(p), "<a id="); rows != len(problems) {
		t.Errorf("docs/errors.md has %d codes, the daemon %d", rows, len(problems))
	}
}

func TestProblems(t *testing.T) {
	for _, c := range []struct {
		err   error
		code  code
		field string
		retry string
	}{
		{invalid.Errorf("n", "0: want 1"), codeInvalidField, "n", ""},
		{BadRequest("no"), codeBadRequest, "", ""},
		{&sandbox.NotFoundError{ID: "sb-x"}, codeNoSandbox, "", ""},
		{&failure.ForkError{First: &store.NotFoundError{Tag: "x"}}, codeNoSnapshot, "", ""},
		{&sandbox.CutOffError{ID: "sb-x"}, codeCutOff, "", ""},
		{&admit.Error{Code: admit.CodeHostMemory}, codeHostMemory, "", "5"},
		{&admit.Error{Code: admit.CodeMaxVCPUs}, codeMaxVCPUs, "", "5"},
		{&hub.RegistryError{Registry: "r", Status: 401, Err: errors.New("x")}, codeRegistryDenied, "", ""},
		{&hub.RegistryError{Registry: "r", Status: 404, Err: errors.New("x")}, codeNoRemote, "", ""},
		{&hub.RegistryError{Registry: "r", Err: errors.New("x")}, codeRegistryFailed, "", "5"},
		{ErrTooMany, codeBusy, "", "1"},
		{&admit.BusyError{}, codeBusy, "", "1"},
		{&backlog.Error{}, codeBusy, "", "1"},
		{&backlog.Error{Flush: syscall.EIO}, codeBusy, "", "1"},
		{&backlog.Error{Flush: fmt.Errorf("flush: %w", syscall.ENOSPC)}, codeNoSpace, "", ""},
		{&agentclient.Error{Code: agentclient.CodeNotFound}, codeNoFile, "", ""},
		{&agentclient.Error{Code: "new"}, codeGuestFailed, "", ""},
		{fmt.Errorf("write: %w", syscall.ENOSPC), codeNoSpace, "", ""},
		{fmt.Errorf("link: %w", syscall.EMLINK), codeNoSpace, "", ""},
		{&failure.ForkError{First: fmt.Errorf("restore: %w", vmmclient.ErrGone)}, codeVMEnded, "", ""},
		{&failure.RollbackError{Err: &vmpool.ExitError{}}, codeVMEnded, "", ""},
		{&failure.RollbackError{Err: &unique.Error{}}, codeNotUnique, "", ""},
		{errors.New("x"), codeInternal, "", ""},
	} {
		w := httptest.NewRecorder()
		WriteProblem(w, c.err)
		body := ProblemOf(c.err)
		if code(body.Code) != c.code || body.Field != c.field || w.Header().Get("Retry-After") != c.retry {
			t.Errorf("%v: %+v, Retry-After %q; want %+v", c.err, body, w.Header().Get("Retry-After"), c)
		}
		if w.Code != body.Status || w.Code != problems[c.code].status || body.Detail != c.err.Error() ||
			body.Message != body.Detail {
			t.Errorf("%v: answered with %d: %+v", c.err, w.Code, body)
		}
	}
}

// An error that is made from a status alone is answered with that status.
func TestCodesOfStatuses(t *testing.T) {
	for _, status := range []int{400, 401, 403, 404, 405, 409, 426, 429, 500, 503, 504} {
		if got := StatusOf(NewError(status, "x")); got != status {
			t.Errorf("an error made with status %s is answered with %s", strconv.Itoa(status)+" "+http.StatusText(status),
				http.StatusText(got))
		}
	}
}
