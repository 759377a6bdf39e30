package soak

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/forkd/forkd/client"
)

// outcome is a client's knowledge about the result of a request.
type outcome int

const (
	done    outcome = iota // the request was carried out
	refused                // the request was not carried out
	unknown                // the daemon was killed, or failed during the request
)

// rules lists the error codes (docs/errors.md) that faults may cause, with the faults that explain
// each code. A run fails if a request gets another code, or gets one of these codes while none of
// the faults that explain the code is active.
var rules = map[string][]Kind{
	"no_space":      {FillDisk, FillRAM},
	"host_disk":     {FillDisk},
	"sandbox_state": {FillDisk}, // the sandbox is paused until there is room
	"timeout":       {StallDisk, FillDisk},
}

// ofDeadVMs are the codes of answers to requests whose VM was killed.
var ofDeadVMs = []string{"sandbox_state", "sandbox_not_found", "vm_ended", "sandbox_failed"}

// maybeDone are codes after which the request may have been carried out in part.
var maybeDone = []string{"internal", "vm_ended", "sandbox_failed", "timeout", "no_space"}

// cutOff is used as the code of a request whose connection broke.
const cutOff = "cut_off"

// asked describes a request, and the possible errors in its answer.
type asked struct {
	op  string
	box *box   // sandbox that the request names; nil if it names none, or a sandbox of another client
	id  string // id of the sandbox that the request names, if the sandbox belongs to another client
	to  string // further details, for messages

	starts bool     // the request starts a VM, and a fault can kill that VM too
	may    []string // codes that are expected without a fault
}

// do(a, f) makes a request and checks its answer.
func (w *worker) do(a asked, f func(ctx context.Context) error) outcome {
	ctx, cancel := context.WithTimeout(context.Background(), stepLimit)
	defer cancel()
	from := time.Now()
	err := f(ctx)
	took := time.Since(from)
	w.rep.Say("client %d: %s: %s in %.1f s", w.n, a, cmp.Or(text(err), "ok"), took.Seconds())
	if err == nil {
		w.rep.answered(a.op, "ok")
		return done
	}
	var e *client.Error
	if !errors.As(err, &e) {
		w.rep.answered(a.op, cutOff)
		kind, ok := w.faults.explains(from, KillDaemon)
		if !ok || errors.Is(err, context.DeadlineExceeded) {
			w.rep.find(&w.rep.Unexpected, "client %d: %s: after %.1f s: %v", w.n, a, took.Seconds(), err)
		} else {
			w.rep.excused(cutOff, kind)
		}
		w.await(func(ctx context.Context) (bool, error) { err := w.d.Healthy(ctx); return err == nil, err })
		return unknown
	}
	w.rep.answered(a.op, e.Code)
	if !slices.Contains(a.may, e.Code) {
		if kind, ok := w.excuse(a, e.Code, from); ok {
			w.rep.excused(e.Code, kind)
		} else {
			w.rep.find(&w.rep.Unexpected, "client %d: %s: after %.1f s: %d %s: %v", w.n, a, took.Seconds(), e.Status, e.Code,
				err)
		}
	}
	if slices.Contains(maybeDone, e.Code) {
		return unknown
	}
	return refused
}

// excuse finds the fault that explains the code of an answer. The request was sent at the given
// time.
func (w *worker) excuse(a asked, code string, from time.Time) (Kind, bool) {
	if slices.Contains(ofDeadVMs, code) {
		if a.box != nil && w.mayBeDead(a.box) {
			return KillVMM, true
		}
		if a.box == nil || a.starts {
			if kind, ok := w.faults.explains(from, KillVMM); ok {
				return kind, true
			}
		}
	}
	return w.faults.explains(from, rules[code]...)
}

// String describes the request.
func (a asked) String() string {
	words := a.op
	switch {
	case a.box != nil:
		words += " of " + a.box.name()
	case a.id != "":
		words += " of somebody's sandbox " + a.id
	}
	if a.to != "" {
		words += " (" + a.to + ")"
	}
	return words
}

// text returns the text of an error, with its code.
func text(err error) string {
	var e *client.Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return e.Code + ": " + err.Error()
	}
	return err.Error()
}

func (b *box) name() string { return "sandbox " + b.id + ", " + b.state }
