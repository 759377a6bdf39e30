package ledger

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// LostError says why clients may not use a VM that an earlier daemon left behind.
type LostError struct{ error }

func (e *LostError) Unwrap() error { return e.error }

// Lost returns a *LostError with the given text.
func Lost(format string, args ...any) error { return &LostError{fmt.Errorf(format, args...)} }

// AloneError says why a VM that still runs was left alone.
type AloneError struct {
	Reason error
	PID    int             // process id of its VMM
	Ended  <-chan struct{} // closed when the VMM has exited
}

func (e *AloneError) Unwrap() error { return e.Reason }

func (e *AloneError) Error() string {
	return fmt.Sprintf("%v: delete it with the forkd that started it, or end process %d", e.Reason, e.PID)
}

// HandedOut returns the record of the sandbox with the given id, if clients may use the sandbox.
// The parameter runDir is the run directory of all sandboxes, dir is the directory of the sandbox's
// VM, and data is the sandbox's data directory. If clients may not use the VM, the error is a
// *LostError. If the reason is an interrupted rollback, HandedOut has stored the target of the
// rollback as the sandbox's suspended state. After any other error it is unknown whether clients
// may use the sandbox: the record is damaged, or has a version that this daemon does not know.
func HandedOut(runDir, dir, data, id string) (Record, error) {
	r, err := Read(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return r, Lost("it was never handed out")
	case err != nil:
		return r, err
	case r.ID != id:
		return r, fmt.Errorf("%s names sandbox %q", File, r.ID)
	case r.Restoring:
		if err := r.suspendRestoring(data); err != nil {
			return r, err
		}
		return r, Lost("it was being rolled back when its daemon ended, and may not have confirmed")
	}
	unfinished, err := IsUnfinished(runDir, filepath.Dir(data), r.Fork)
	if err != nil {
		return r, err
	}
	if unfinished {
		return r, Lost("its fork was not finished when its daemon ended")
	}
	last, err := ReadSuspended(data)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return r, err
	case last.Suspends != r.Suspends:
		return r, Lost("it had been suspended")
	}
	return r, nil
}
