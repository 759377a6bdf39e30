package router

import (
	"errors"
	"net/http"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/cluster/placement"
	"github.com/forkd/forkd/internal/daemon/face"
)

var (
	errSilent = errors.New("it does not answer")
	errNoVMs  = errors.New("it cannot run VMs")
)

// nodeList answers with what the router knows about its nodes. The nodes decide whether the client
// may know that: each node that answers must also give the client its list of moves, which no client
// with a label prefix can read. If no node answers, the client gets an error.
func (r *Router) nodeList(w http.ResponseWriter, req *http.Request) {
	if q := req.URL.RawQuery; q != "" {
		fail(w, req, face.BadRequest("query: GET /v1/nodes has no parameters"))
		return
	}
	leave, err := wait(r.lists, req)
	if err != nil {
		return // the client has left
	}
	defer leave()
	nodes, allowed := r.list(), false
	for _, a := range r.movesOf(req, nodes) {
		switch {
		case a == nil:
		case a.status != http.StatusOK:
			a.send(w)
			return
		default:
			allowed = true
		}
	}
	if !allowed {
		fail(w, req, &face.NodeError{Node: nodes[0].Name, Err: errSilent})
		return
	}
	out := apiv1.RouterNodes{Nodes: []apiv1.RouterNode{}}
	for _, n := range nodes {
		out.Nodes = append(out.Nodes, n.describe())
	}
	_ = face.WriteJSON(w, req, http.StatusOK, out)
}

// describe returns what the router knows about a node.
func (n *node) describe() apiv1.RouterNode {
	out := apiv1.RouterNode{Name: n.Name, URL: n.base.String(), Cordoned: n.Cordoned}
	p, _, err := n.placeable()
	if err == nil && p.State != placement.Ready && !n.Cordoned {
		err = errNoVMs
	}
	if err != nil {
		out.Error = err.Error()
		return out
	}
	out.Load, out.Sandboxes, out.MaxSandboxes = p.Load(), p.Used.Sandboxes, p.Capacity.Sandboxes
	out.MemoryMiB, out.UsedMemoryMiB = p.Capacity.MemoryMiB, p.Used.MemoryMiB
	return out
}
