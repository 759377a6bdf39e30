package envd

import (
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"
)

// If the kernel refuses an operation, both APIs report an error of the client, and not a failure of
// the agent.
func TestRefusalsOfTheKernel(t *testing.T) {
	for _, c := range []struct {
		errno  unix.Errno
		code   connect.Code
		status int
	}{
		{unix.EBUSY, connect.CodePermissionDenied, http.StatusForbidden},
		{unix.ETXTBSY, connect.CodePermissionDenied, http.StatusForbidden},
		{unix.EROFS, connect.CodePermissionDenied, http.StatusForbidden},
		{unix.EACCES, connect.CodePermissionDenied, http.StatusForbidden},
		{unix.EISDIR, connect.CodeInvalidArgument, http.StatusBadRequest},
		{unix.ENOTEMPTY, connect.CodeAlreadyExists, http.StatusBadRequest},
		{unix.ELOOP, connect.CodeInvalidArgument, http.StatusBadRequest},
		{unix.EINVAL, connect.CodeInvalidArgument, http.StatusBadRequest},
		{unix.EIO, connect.CodeInternal, http.StatusInternalServerError},
	} {
		for _, err := range []error{
			fmt.Errorf("move: %w", &os.LinkError{Op: "rename", Old: "/", New: "/a", Err: c.errno}),
			&fs.PathError{Op: "open", Path: "/", Err: c.errno},
		} {
			w := httptest.NewRecorder()
			fail(w, err)
			if code := connect.CodeOf(fsError(err)); code != c.code || w.Code != c.status {
				t.Errorf("%v: %v and %d, want %v and %d", err, code, w.Code, c.code, c.status)
			}
		}
	}
}
