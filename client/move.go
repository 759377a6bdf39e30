package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"

	v1 "github.com/forkd/forkd/api/v1"
)

// Moves lists the sandboxes that are moving between hosts, or have moved. A router answers for all
// of its nodes.
func (c *Client) Moves(ctx context.Context) (m Moves, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/moves", nil, &m)
	return m, err
}

// MoveStep takes a sandbox through one step of a move. If the client talks to a router, node names
// the host whose daemon takes the step; a daemon ignores node. Users of this package need only
// Move.
func (c *Client) MoveStep(ctx context.Context, node, id string, step MoveStep) (m SandboxMove, err error) {
	if err := checkRegistries(step.RegistryAuth); err != nil {
		return m, err
	}
	p, err := json.Marshal(step)
	if err != nil {
		return m, err
	}
	header := http.Header{"Content-Type": {"application/json"}}
	if node != "" {
		header.Set(v1.NodeHeader, node)
	}
	resp, err := c.send(ctx, http.MethodPost, "/v1/moves/"+url.PathEscape(id), bytes.NewReader(p), header)
	if err != nil {
		return m, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&m); err != nil {
		return m, fmt.Errorf("POST /v1/moves: answer: %w", err)
	}
	return m, nil
}

// Nodes lists the nodes of a router. A daemon has no such list.
func (c *Client) Nodes(ctx context.Context) (n RouterNodes, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/nodes", nil, &n)
	return n, err
}

// An ArriveError says that a sandbox could not arrive on the other host of a move. It has not moved.
type ArriveError struct {
	Node string // the other host
	Err  error
}

func (e *ArriveError) Error() string { return fmt.Sprintf("move to %q: %v", e.Node, e.Err) }

// Unwrap returns the reason.
func (e *ArriveError) Unwrap() error { return e.Err }

// A MoveHost is one of the two hosts of a move.
type MoveHost struct {
	Client *Client // of the host's daemon, or of a router
	Node   string  // name of the host
}

func (h *MoveHost) step(ctx context.Context, id string, step MoveStep) (SandboxMove, error) {
	return h.Client.MoveStep(ctx, h.Node, id, step)
}

// moveTries is how many times Move tries the step leave while the sandbox is not suspended yet.
// movePause is the time between two tries while another request suspends or restores the sandbox.
const (
	moveTries = 5
	movePause = time.Second
)

// cancelTime bounds the time that Move takes to undo its steps.
const cancelTime = time.Minute

// Move moves a sandbox to another host. The sandbox keeps its id. A running sandbox is suspended,
// and resumed on the other host; any other sandbox stays suspended. The daemon of the other host
// fetches the files from the daemon of the first host. Move calls the callback registry with the
// first host's name, and the callback returns the HOST:PORT of the first daemon. The other daemon
// logs in there with the token of from.Client. The tokens of both clients need the scope admin. If
// both clients talk to a router, from.Node may be empty.
//
// If the move fails before the first host has given the sandbox up, Move undoes it. If it fails later,
// or if this program is killed, call Move again with the same hosts.
func Move(ctx context.Context, id string, from, to MoveHost,
	registry func(node string) (string, error)) (s Sandbox, err error) {
	m, resume, err := leave(ctx, id, &from, to.Node)
	if err != nil {
		return s, errors.Join(err, resumeAgain(ctx, id, &from, resume))
	}
	if m.Departure == nil { // the sandbox moved earlier
		return to.Client.Sandbox(ctx, id)
	}
	from.Node = m.Departure.From
	arrive := MoveStep{Step: "arrive", Departure: m.Departure}
	arrive.Registry, err = registry(from.Node)
	if err == nil && from.Client.token != "" {
		arrive.RegistryAuth = map[string]RegistryAuth{arrive.Registry: {Username: "forkd", Password: from.Client.token}}
	}
	if err == nil {
		_, err = to.step(ctx, id, arrive)
	}
	if err != nil {
		return s, errors.Join(&ArriveError{to.Node, err}, undo(ctx, id, &from, &to, resume))
	}
	// From here on the sandbox may belong to the other host, so nothing can be undone.
	m, err = from.step(ctx, id, MoveStep{Step: "commit"})
	if err == nil {
		_, err = to.step(ctx, id, MoveStep{Step: "activate", Key: m.Key})
	}
	if err == nil {
		_, err = from.step(ctx, id, MoveStep{Step: "free"})
	}
	if err != nil {
		return s, fmt.Errorf("the move is not complete, so repeat it: %w", err)
	}
	if resume {
		return to.Client.Resume(ctx, id)
	}
	return to.Client.Sandbox(ctx, id)
}

// leave takes the step leave. If necessary, it suspends the sandbox first. It reports whether the
// sandbox was running.
func leave(ctx context.Context, id string, from *MoveHost, to string) (m SandboxMove, running bool, err error) {
	for try := 1; ; try++ {
		m, err = from.step(ctx, id, MoveStep{Step: "leave", Node: to})
		if !errors.Is(err, ErrSandboxState) || try == moveTries {
			return m, running, err
		}
		s, stateErr := from.Client.Sandbox(ctx, id)
		if stateErr != nil {
			return m, running, stateErr
		}
		switch {
		case s.State == "running" || s.State == "paused":
			running = running || s.State == "running"
			if _, err := from.Client.Suspend(ctx, id); err != nil && !errors.Is(err, ErrSandboxState) {
				return m, running, err
			}
		case !slices.Contains([]string{"suspended", "restoring"}, s.State):
			return m, running, err
		default:
			select {
			case <-ctx.Done():
				return m, running, ctx.Err()
			case <-time.After(movePause):
			}
		}
	}
}

// undo cancels a move on both hosts, and resumes the sandbox if it was running.
func undo(ctx context.Context, id string, from, to *MoveHost, resume bool) error {
	within, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelTime)
	defer stop()
	if err := CancelMove(within, id, *from, *to); err != nil {
		return err
	}
	return resumeAgain(ctx, id, from, resume)
}

// resumeAgain resumes a sandbox that stays on its host, if it was running.
func resumeAgain(ctx context.Context, id string, on *MoveHost, running bool) error {
	if !running {
		return nil
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelTime)
	defer stop()
	_, err := on.Client.Resume(ctx, id)
	return err
}

// CancelMove undoes a move if the first host has not given the sandbox up yet.
func CancelMove(ctx context.Context, id string, from, to MoveHost) error {
	if _, err := from.step(ctx, id, MoveStep{Step: "cancel"}); err != nil {
		return err // the files on the other host may be needed
	}
	_, err := to.step(ctx, id, MoveStep{Step: "cancel"})
	return err
}
