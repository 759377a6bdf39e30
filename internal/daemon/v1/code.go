package v1

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/invalid"
)

// runCode answers with the output of code while it runs, as lines of JSON. An error before the code
// has started determines the HTTP status. A later error is sent as the last line. If the client
// disconnects, the code is interrupted.
func (a *api) runCode(w http.ResponseWriter, r *http.Request) error {
	var req apiv1.CodeRequest
	if err := face.ReadJSON(w, r, &req); err != nil {
		return err
	}
	if req.Language != "" && req.ContextID != "" {
		return invalid.Errorf("language", "excludes context_id: a context has its language")
	}
	if err := checkEnv(req.Env); err != nil {
		return err
	}
	timeout, err := face.Seconds("timeout_secs", req.TimeoutSecs, defaultExec, maxExec)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	out := newLines(w, a.Face.Limits.Stall)
	stop := out.keepAlive(apiv1.CodeEvent{Keepalive: true}, a.Face.Limits.Keepalive, cancel)
	var end agentclient.CodeEnd
	const op = "run code in"
	err = a.onGuest(ctx, r, op, func(ctx context.Context, guest *agentclient.Client) (err error) {
		end, err = guest.RunCode(ctx, agentclient.CodeRequest{
			Code: req.Code, ContextID: req.ContextID, Language: req.Language, Env: req.Env, Repr: req.Repr, Timeout: timeout,
		}, codeSink(out))
		return err
	})
	if err == nil && end.TimedOut {
		err = a.paused(r, r.PathValue("id"), op) // the error says that the sandbox is paused, not that the code is slow
	}
	stop()
	if err != nil && !out.hasBegun() {
		return err
	}
	last := apiv1.CodeEvent{End: codeEnd(end)}
	if err != nil {
		last = apiv1.CodeEvent{Error: err.Error(), Status: face.StatusOf(err), Code: face.ProblemOf(err).Code}
	}
	out.last(last)
	return nil
}

// codeSink returns a sink that sends the output of code to the client.
func codeSink(out *lines) agentclient.CodeSink {
	return agentclient.CodeSink{
		Started: func(n int) error {
			return out.send(apiv1.CodeEvent{Started: &apiv1.CodeStarted{ExecutionCount: n}})
		},
		Output: func(s agentclient.Stream, text string) error {
			if text == "" {
				return nil
			}
			if s == agentclient.Stdout {
				return out.send(apiv1.CodeEvent{Stdout: text})
			}
			return out.send(apiv1.CodeEvent{Stderr: text})
		},
		Result: func(main bool, data map[string]json.RawMessage) error {
			return out.send(apiv1.CodeEvent{Result: &apiv1.CodeResult{Main: main, Data: data}})
		},
		Exception: func(e agentclient.EvalError) error {
			exception := apiv1.CodeException(e)
			return out.send(apiv1.CodeEvent{Exception: &exception})
		},
	}
}

func codeEnd(end agentclient.CodeEnd) *apiv1.CodeEnd {
	e := &apiv1.CodeEnd{ExecutionCount: end.ExecutionCount, Outcome: "finished", StateLost: end.Died || end.Restarted}
	switch {
	case end.TimedOut:
		e.Outcome = "timeout"
	case end.Died:
		e.Outcome = "died"
	case end.Raised:
		e.Outcome = "exception"
	}
	return e
}

func (a *api) listContexts(r *http.Request) ([]apiv1.CodeContext, error) {
	list := []apiv1.CodeContext{}
	err := a.onInterpreter(r, "list contexts of", func(ctx context.Context, guest *agentclient.Client) error {
		contexts, err := guest.Contexts(ctx)
		for _, c := range contexts {
			list = append(list, apiv1.CodeContext(c))
		}
		return err
	})
	return list, err
}

func (a *api) createContext(r *http.Request, req *apiv1.CodeContextRequest) (made apiv1.CodeContext, err error) {
	if strings.ContainsRune(req.Cwd, 0) {
		return made, invalid.Errorf("cwd", "contains a NUL byte")
	}
	err = a.onInterpreter(r, "create a context in", func(ctx context.Context, guest *agentclient.Client) error {
		c, err := guest.CreateContext(ctx, req.Language, req.Cwd)
		made = apiv1.CodeContext(c)
		return err
	})
	return made, err
}

func (a *api) deleteContext(r *http.Request) error {
	return a.onInterpreter(r, "delete a context of", func(ctx context.Context, guest *agentclient.Client) error {
		return guest.DeleteContext(ctx, r.PathValue("context"))
	})
}
