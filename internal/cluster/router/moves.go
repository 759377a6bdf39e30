package router

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/vmpool"
)

// maxRepeated is the maximum size of a body that the router keeps, in bytes. If the sandbox has
// just moved to another node, the router sends the request with this body a second time, to that
// node. The answer of the first node has the same maximum size.
const maxRepeated = 16 << 10

// moved is what a node says about moves.
type moved struct {
	known   bool              // the node has answered at least once
	away    map[string]string // sandboxes that are not on the node any more, with the names of their nodes
	foreign map[string]bool   // sandboxes of the node that another node has made
}

// movedOf reads a node's answer about moves.
func movedOf(list *movesAnswer) moved {
	m := moved{known: true, away: make(map[string]string), foreign: make(map[string]bool)}
	if n := list.Nodes[0]; n != nil {
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
// has moved, the router had not heard of the move. In this case, toOwner sends the request to the
// node that the answer names. A request with a long body is sent only once.
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
	a := &attempt{node: n, refused: hasMoved, most: maxRepeated}
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

// hasMoved reports whether a daemon answers that the sandbox has moved. Daemons remove the header from
// answers of servers in sandboxes.
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

// mayLeave reports whether a sandbox can be on its way from a node that says so. As in ownerOf, the node that
// the id names decides. Otherwise a hostile node could take part in moves of other nodes' sandboxes.
func (r *Router) mayLeave(id string, from *node) bool {
	code, err := vmpool.NodeOf(id)
	if err != nil {
		return false
	}
	nodes := r.list()
	i := slices.IndexFunc(nodes, func(n *node) bool { return n.code == code })
	if i < 0 || nodes[i] == from {
		return true
	}
	m := nodes[i].moved()
	_, away := m.away[id]
	return away || !m.known
}

// moves answers with the moves of all nodes. It includes nodes that do not answer.
func (r *Router) moves(w http.ResponseWriter, req *http.Request) {
	leave, err := wait(r.lists, req)
	if err != nil {
		return // the client has left
	}
	defer leave()
	nodes := r.list()
	answers := r.movesOf(req, nodes)
	out := apiv1.Moves{Nodes: []apiv1.NodeMoves{}}
	for i, a := range answers {
		own := apiv1.NodeMoves{Node: nodes[i].Name, URL: nodes[i].base.String(), Moves: []apiv1.Move{}}
		var list movesAnswer
		switch {
		case a == nil:
			own.Error = "it does not answer, or its list is too long"
		case a.status != http.StatusOK:
			a.send(w) // for example, because the token has too few rights
			return
		case json.Unmarshal(a.body, &list) != nil || list.Nodes[0] == nil:
			own.Error = "its answer is not one of a daemon"
		default:
			own.Foreign = list.Nodes[0].Foreign
			for _, m := range list.Nodes[0].Moves {
				if m.Phase == "gone" || m.Phase == "arriving" || r.mayLeave(m.ID, nodes[i]) {
					own.Moves = append(own.Moves, m)
				}
			}
		}
		out.Nodes = append(out.Nodes, own)
	}
	_ = face.WriteJSON(w, req, http.StatusOK, out)
}

// movesOf asks nodes for their moves, with the client's token. The answer of a node that does not
// answer is nil.
func (r *Router) movesOf(req *http.Request, nodes []*node) []*answer {
	ctx, cancel := context.WithTimeout(req.Context(), r.listTimeout)
	defer cancel()
	req = req.Clone(ctx)
	req.URL.Path, req.URL.RawPath = movesPath, ""
	var held atomic.Int64
	answers, _ := each(nodes, func(n *node) (*answer, error) {
		a, err := r.hold(ctx, req, n, r.pageBytes)
		if err == nil && held.Add(int64(len(a.body))) > int64(r.listBytes) {
			return nil, errTooLong
		}
		return a, err
	})
	return answers
}
