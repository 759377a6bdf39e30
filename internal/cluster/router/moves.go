package router

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/vmpool"
)

// maxRepeated is the maximum size of a body that the router keeps, in bytes. With the body, it can
// send the request to a second node if the sandbox has just moved there.
const maxRepeated = 16 << 10

// moved is what a node says about moves.
type moved struct {
	known   bool              // the node has answered at least once
	away    map[string]string // sandboxes that are not on the node any more, with the names of their nodes
	foreign map[string]bool   // sandboxes of the node that another node has made
}

// movedOf reads a node's answer about moves.
func movedOf(list *apiv1.Moves) moved {
	m := moved{known: true, away: make(map[string]string), foreign: make(map[string]bool)}
	for _, n := range list.Nodes {
		for _, s := range n.Moves {
			if s.Phase != "leaving" { // in this phase, the node still has the sandbox
				m.away[s.ID] = s.Node
			}
		}
		for _, id := range n.Foreign {
			m.foreign[id] = true
		}
	}
	return m
}

func (n *node) moved() moved {
	n.status.mu.Lock()
	defer n.status.mu.Unlock()
	return n.status.moved
}

// ownerOf returns the node that has a sandbox, or nil if the id leads to no node. Usually the id
// names this node. If the named node says that the sandbox has left, the sandbox is on the only
// node that claims it or, without such a claim, on the node that the named node gives. If the
// router has never heard from the named node, the claim of another node is enough.
func (r *Router) ownerOf(id string) *node {
	code, err := vmpool.NodeOf(id)
	if err != nil {
		return nil
	}
	nodes := r.list()
	var home *node
	to := ""
	if i := slices.IndexFunc(nodes, func(n *node) bool { return n.code == code }); i >= 0 {
		home = nodes[i]
		m := home.moved()
		away := false
		if to, away = m.away[id]; m.known && !away {
			return home
		}
	}
	var claims []*node
	for _, n := range nodes {
		if n != home && n.moved().foreign[id] {
			claims = append(claims, n)
		}
	}
	if len(claims) == 1 {
		return claims[0]
	}
	if n := r.named(to); n != nil {
		return n
	}
	return home
}

// named returns the node with a name, or nil.
func (r *Router) named(name string) *node {
	nodes := r.list()
	if i := slices.IndexFunc(nodes, func(n *node) bool { return n.Name == name }); i >= 0 {
		return nodes[i]
	}
	return nil
}

// toOwner passes a request on to the node that has a sandbox. If this node answers that the sandbox
// has moved, the router had not heard of the move. It then sends the request to the node that the
// answer names. A request with a long body is sent only once.
func (r *Router) toOwner(w http.ResponseWriter, req *http.Request, id string) {
	n := r.ownerOf(id)
	if n == nil {
		fail(w, req, &sandbox.NotFoundError{ID: id})
		return
	}
	if req.ContentLength < 0 || req.ContentLength > maxRepeated {
		r.send(w, req, n)
		return
	}
	deadlines := http.NewResponseController(w)
	_ = deadlines.SetReadDeadline(time.Now().Add(bodyTimeout)) // some ResponseWriters of tests have no deadlines
	body, err := io.ReadAll(req.Body)
	_ = deadlines.SetReadDeadline(time.Time{})
	if err != nil {
		fail(w, req, face.BadRequest("body: %v", err))
		return
	}
	again := func() *http.Request {
		req := req.Clone(req.Context())
		if req.Body = http.NoBody; len(body) > 0 {
			req.Body = io.NopCloser(bytes.NewReader(body))
		}
		return req
	}
	a := &attempt{node: n, refused: hasMoved, most: maxHeld}
	r.try(w, again(), a)
	switch {
	case a.err != nil:
		fail(w, req, a.err)
	case a.answer == nil: // the client has the answer
	default:
		if to := r.named(a.answer.header.Get(apiv1.NodeHeader)); to != nil {
			r.send(w, again(), to)
			return
		}
		a.answer.send(w)
	}
}

// hasMoved reports whether a daemon answers that the sandbox has moved. A server in a sandbox can
// give such an answer too. The node that it names then answers that it has no such sandbox.
func hasMoved(resp *http.Response) bool {
	return resp.StatusCode == http.StatusNotFound && resp.Header.Get(apiv1.NodeHeader) != ""
}

// step passes a step of a move on to the node that the request names, or to the node that has the sandbox.
func (r *Router) step(w http.ResponseWriter, req *http.Request, id string) {
	name := req.Header.Get(apiv1.NodeHeader)
	if name == "" {
		r.toOwner(w, req, id)
		return
	}
	n := r.named(name)
	if n == nil {
		fail(w, req, face.BadRequest("%s: %.100q: there is no such node", apiv1.NodeHeader, name))
		return
	}
	r.send(w, req, n)
}

// moves answers with the moves of all nodes. It includes nodes that do not answer.
func (r *Router) moves(w http.ResponseWriter, req *http.Request) {
	leave, err := wait(r.lists, req)
	if err != nil {
		return // the client has left
	}
	defer leave()
	ctx, cancel := context.WithTimeout(req.Context(), r.listTimeout)
	defer cancel()
	nodes := r.list()
	answers, _ := each(nodes, func(n *node) (*answer, error) { return r.hold(ctx, req, n, r.pageBytes) })
	out := apiv1.Moves{Nodes: []apiv1.NodeMoves{}}
	for i, a := range answers {
		own := apiv1.NodeMoves{Error: "it does not answer"}
		var list apiv1.Moves
		switch {
		case a == nil:
		case a.status != http.StatusOK:
			a.send(w) // for example, because the token has too few rights
			return
		case json.Unmarshal(a.body, &list) != nil || len(list.Nodes) != 1:
			own.Error = "its answer is not one of a daemon"
		default:
			own = list.Nodes[0]
		}
		if own.Node, own.URL = nodes[i].Name, nodes[i].base.String(); own.Moves == nil {
			own.Moves = []apiv1.Move{}
		}
		out.Nodes = append(out.Nodes, own)
	}
	_ = face.WriteJSON(w, req, http.StatusOK, out)
}
