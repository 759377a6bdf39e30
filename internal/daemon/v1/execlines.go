package v1

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"unicode/utf8"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/agentclient"
)

// output receives the output of a command. Its functions are called from one goroutine. If a
// function returns an error, the follower ends.
type output struct {
	started func(*agentclient.Process) error
	data    func(agentclient.Stream, []byte) error
}

// follower passes everything that a command prints to the functions in the given output struct. It
// returns when the command exits.
type follower func(context.Context, *agentclient.Client, output) (agentclient.ExecResult, error)

// streamLines answers with the events of a command as they occur, as lines of JSON. An error before
// the command has started determines the HTTP status. A later error is sent as the last line. If
// holds is true, the command is killed when the answer ends, unless it was detached.
func (a *api) streamLines(w http.ResponseWriter, r *http.Request, op string, holds bool, follow follower) error {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	out := newLines(w, a.Face.Limits.Stall)
	stop := out.keepAlive(apiv1.ExecEvent{Keepalive: true}, a.Face.Limits.Keepalive, func() { cancel(nil) })
	release := func() {}
	defer func() { release() }()
	res, err := a.runOn(ctx, r, op, func(ctx context.Context, guest *agentclient.Client) (agentclient.ExecResult, error) {
		return follow(ctx, guest, output{
			started: func(p *agentclient.Process) error {
				if holds {
					release = a.held.hold(r.PathValue("id"), p.PID, cancel)
				}
				return out.send(apiv1.ExecEvent{Started: &apiv1.ExecStarted{PID: p.PID}})
			},
			data: func(s agentclient.Stream, p []byte) error { return out.send(dataEvent(s, p)) },
		})
	})
	stop()
	if err != nil && !out.hasBegun() {
		return err
	}
	last := lastEvent(res, err)
	if errors.Is(context.Cause(ctx), agentclient.ErrDetached) && err != nil {
		last = apiv1.ExecEvent{Detached: true}
	}
	out.last(last)
	return nil
}

// dataEvent returns the event for a part of an output. The event contains text, or bytes if the
// part is not text.
func dataEvent(s agentclient.Stream, p []byte) apiv1.ExecEvent {
	switch text := isText(p); {
	case s == agentclient.Stdout && text:
		return apiv1.ExecEvent{Stdout: string(p)}
	case s == agentclient.Stdout:
		return apiv1.ExecEvent{StdoutBytes: p}
	case text:
		return apiv1.ExecEvent{Stderr: string(p)}
	}
	return apiv1.ExecEvent{StderrBytes: p}
}

// isText reports whether an output is sent as text in JSON. Such an output is UTF-8 without NUL
// bytes, and has no more control characters than coloring needs. Without this rule, a guest could
// make the daemon hold six times the bound on outputs, because a control character takes six bytes
// in JSON.
func isText(p []byte) bool {
	controls := 0
	for _, c := range p {
		switch {
		case c == 0:
			return false
		case c < ' ' && c != '\t' && c != '\n' && c != '\r':
			controls++
		}
	}
	return controls <= 4+len(p)/8 && utf8.Valid(p)
}

// smallOutput is a size in bytes. An output up to this size is always sent as text, for clients
// that support only text.
const smallOutput = 64 << 10

// textOf returns a whole output as text. If the text differs from the output, textOf also returns
// the bytes. If a large output is not text, the returned text contains no control characters.
func textOf(p []byte) (text string, raw []byte) {
	if len(p) <= smallOutput || isText(p) {
		if !utf8.Valid(p) {
			raw = p
		}
		return string(p), raw
	}
	clean := func(r rune) rune {
		if r < ' ' && r != '\t' && r != '\n' && r != '\r' {
			return -1
		}
		return r
	}
	return strings.Map(clean, strings.ToValidUTF8(string(p), "\uFFFD")), p
}

// lastEvent returns the event that says how a command ended, or why its end is unknown.
func lastEvent(res agentclient.ExecResult, err error) apiv1.ExecEvent {
	if err != nil {
		return apiv1.ExecEvent{Error: err.Error(), Status: face.StatusOf(err), Code: face.ProblemOf(err).Code}
	}
	end := execEnd(res)
	return apiv1.ExecEvent{End: &end}
}
