package v1

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"time"
	"unicode/utf8"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/host/agentclient"
)

// output is where what a command says goes to. Its functions are called from one goroutine; an
// error of theirs ends the call.
type output struct {
	started func(*agentclient.Process) error
	data    func(agentclient.Stream, []byte) error
}

// follower follows a command to its end.
type follower func(context.Context, *agentclient.Client, output) (agentclient.ExecResult, error)

// streamLines answers with the events of a command as they come, a line of JSON each. Before it has
// started, an error has a status of its own; later it is the last line.
func (a *api) streamLines(w http.ResponseWriter, r *http.Request, op string, follow follower) error {
	rc := http.NewResponseController(w)
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	begun := false
	send := func(e apiv1.ExecEvent) error {
		if !begun {
			w.Header().Set("Content-Type", apiv1.NDJSON)
			begun = true
		}
		// A client that reads nothing must not hold the command's place for longer than this. A
		// deadline that is left behind would end a stream of HTTP/2 that is only idle.
		_ = rc.SetWriteDeadline(time.Now().Add(a.Limits.Stall))
		defer rc.SetWriteDeadline(time.Time{})
		if err := out.Encode(e); err != nil {
			return err
		}
		return rc.Flush()
	}
	var res agentclient.ExecResult
	err := a.onGuest(r.Context(), r, op, func(ctx context.Context, guest *agentclient.Client) (err error) {
		res, err = follow(ctx, guest, output{
			started: func(p *agentclient.Process) error {
				return send(apiv1.ExecEvent{Started: &apiv1.ExecStarted{PID: p.PID}})
			},
			data: func(s agentclient.Stream, p []byte) error { return send(dataEvent(s, p)) },
		})
		return err
	})
	if err != nil && !begun {
		return err
	}
	_ = send(lastEvent(res, err)) // the client has gone if this fails
	return nil
}

// dataEvent is a part of an output, as text where it is some: UTF-8 without NUL bytes, which are as
// good as never a text's and take six bytes each in JSON.
func dataEvent(s agentclient.Stream, p []byte) apiv1.ExecEvent {
	switch text := utf8.Valid(p) && bytes.IndexByte(p, 0) < 0; {
	case s == agentclient.Stdout && text:
		return apiv1.ExecEvent{Stdout: string(p)}
	case s == agentclient.Stdout:
		return apiv1.ExecEvent{StdoutBytes: p}
	case text:
		return apiv1.ExecEvent{Stderr: string(p)}
	}
	return apiv1.ExecEvent{StderrBytes: p}
}

// lastEvent says how a command ended, or why nobody knows.
func lastEvent(res agentclient.ExecResult, err error) apiv1.ExecEvent {
	if err != nil {
		return apiv1.ExecEvent{Error: err.Error(), Status: statusOf(err), Code: string(codeOf(err))}
	}
	end := execEnd(res)
	return apiv1.ExecEvent{End: &end}
}
