package v1

import (
	"net/http"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/host/hub"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/move"
	"github.com/forkd/forkd/internal/host/vmpool"
)

// moveRoutes returns the routes of moves. An arriving sandbox brings its owner, its labels and its
// network policy, so the steps need all rights.
func (a *api) moveRoutes() []route {
	return []route{
		{"GET /v1/moves", auth.Read, nil, a.Face.Lists, get(a.moves)},
		{"POST /v1/moves/{sandbox}", auth.Admin, nil, a.Face.Work, call(http.StatusOK, a.moveStep)},
	}
}

// moves lists the moves of this host. A token with a label prefix cannot read them, because the ids
// show where sandboxes of other clients are.
func (a *api) moves(r *http.Request) (out apiv1.Moves, err error) {
	if err := a.view(r).Limited("the list of all moves"); err != nil {
		return out, err
	}
	own := apiv1.NodeMoves{Node: a.Node, Moves: []apiv1.Move{}, Foreign: a.Moves.Foreign()}
	for _, m := range a.Moves.List() {
		own.Moves = append(own.Moves, a.moveOf(m))
	}
	return apiv1.Moves{Nodes: []apiv1.NodeMoves{own}}, nil
}

func (a *api) moveOf(m record.Move) apiv1.Move {
	out := apiv1.Move{ID: m.ID, Phase: m.Phase, Node: m.Node}
	if !m.Since.IsZero() {
		out.Since = m.Since.Unix()
	}
	if m.Phase == "" {
		out.Phase = "none"
		if a.Moves.Here(m.ID) {
			out.Phase = "here"
		}
	}
	return out
}

// moveStep takes a sandbox through one step of a move.
func (a *api) moveStep(r *http.Request, req *apiv1.MoveStep) (out apiv1.Move, err error) {
	id := r.PathValue("sandbox")
	audit.From(r.Context()).Sandbox = id
	if err := a.view(r).Limited("a move of a sandbox"); err != nil {
		return out, err
	}
	if !vmpool.IsID(id) {
		return out, face.BadRequest("%.100q: want the id of a sandbox", id)
	}
	var m record.Move
	var d move.Departure
	switch req.Step {
	case "leave":
		if m, d, err = a.Moves.Leave(r.Context(), id, req.Node); err == nil && len(d.Record) > 0 {
			defer func() {
				out.Departure = &apiv1.Departure{From: d.From, To: d.To, Tag: d.Tag, Lock: d.Lock, Record: d.Record,
					TokenKey: d.TokenKey, LinkKey: d.LinkKey}
			}()
		}
	case "arrive":
		m, err = a.arrive(r, id, req)
	case "commit":
		if m, err = a.Moves.Commit(id); err == nil {
			defer func() { out.Key = m.Key }()
		}
	case "activate":
		m, err = a.Moves.Activate(id, req.Key)
	case "free":
		m, err = a.Moves.Free(id)
	case "cancel":
		m, err = a.Moves.Cancel(id)
	default:
		return out, invalid.Errorf("step", "%.40q: want leave, arrive, commit, activate, free or cancel", req.Step)
	}
	if err != nil {
		return out, err
	}
	return a.moveOf(m), nil
}

// arrive fetches a sandbox from another daemon.
func (a *api) arrive(r *http.Request, id string, req *apiv1.MoveStep) (m record.Move, err error) {
	d := req.Departure
	if d == nil {
		return m, invalid.Errorf("departure", "missing: want the answer of the other daemon to the step leave")
	}
	from, err := hub.ParseRemote("registry", req.Registry+"/"+d.Tag+":latest")
	if err != nil {
		return m, err
	}
	if err := logIn(req.RegistryAuth, &from); err != nil {
		return m, err
	}
	m, err = a.Moves.Arrive(r.Context(), auth.From(r.Context()).Who, id, move.Departure{From: d.From, To: d.To, Tag: d.Tag,
		Lock: d.Lock, Record: d.Record, TokenKey: d.TokenKey, LinkKey: d.LinkKey}, from)
	return m, orTooMany(err)
}
