package router

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/cluster/placement"
	"github.com/forkd/forkd/internal/daemon/face"
)

// maxTries is the maximum number of nodes that are asked to execute one request.
const maxTries = 3

// bodyTimeout is how long a client may take to send the body of a request for sandboxes.
const bodyTimeout = 30 * time.Second

// creation has the fields of a creation request's body that decide which node gets the request.
// That node's daemon checks the body.
type creation struct {
	SnapshotTag string `json:"snapshot_tag"`
	SourceID    string `json:"source_id"`
	TemplateID  string `json:"templateID"` // the snapshot, in E2B's words
	N           uint64 `json:"n"`
	Volumes     some   `json:"volumes"`
	Mounts      some   `json:"volumeMounts"` // volumes, in E2B's words

	// The Idempotency-Key, or a random text. If the same request is at two routers at the same
	// time, both choose the same node among equally good nodes, and that node's daemon executes the
	// request once.
	key string
}

// some is true if a list in JSON has elements. A client without a token can send a long list, so
// the elements are not decoded.
type some bool

// UnmarshalJSON implements json.Unmarshaler.
func (s *some) UnmarshalJSON(text []byte) error {
	rest, isList := bytes.CutPrefix(bytes.TrimSpace(text), []byte("["))
	*s = some(isList && !bytes.HasPrefix(bytes.TrimSpace(rest), []byte("]")))
	return nil
}

// tag returns the tag of the snapshot.
func (c *creation) tag() string {
	if c.SnapshotTag != "" {
		return c.SnapshotTag
	}
	tag, _, _ := strings.Cut(c.TemplateID, ":")
	return tag
}

// create passes a request for sandboxes on to the best node. If that node refuses the request
// before it creates anything, the next best node gets the request.
func (r *Router) create(w http.ResponseWriter, req *http.Request) {
	leave, err := wait(r.creates, req)
	if err != nil {
		return // the client has left
	}
	defer leave()
	// A client that sends its body slowly must not keep its place.
	deadlines := http.NewResponseController(w)
	_ = deadlines.SetReadDeadline(time.Now().Add(bodyTimeout))
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, face.MaxBody))
	_ = deadlines.SetReadDeadline(time.Time{})
	if err != nil {
		fail(w, req, err)
		return
	}
	var c creation
	_ = json.Unmarshal(body, &c) // the daemon reports an invalid body
	c.key = cmp.Or(req.Header.Get("Idempotency-Key"), rand.Text())
	again := func() *http.Request {
		req := req.Clone(req.Context())
		req.Body, req.ContentLength, req.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
		return req
	}
	switch {
	case c.SourceID != "":
		r.toOwner(w, again(), c.SourceID)
		return
	case bool(c.Volumes || c.Mounts):
		fail(w, req, &face.NotRoutedError{Reason: "volumes: they are on one node: send the request to its daemon"})
		return
	}
	if req.Header.Get("Idempotency-Key") != "" {
		if done, err := r.earlier(req.Context(), w, again); done || err != nil {
			if err != nil {
				fail(w, req, err)
			}
			return
		}
	}
	r.place(w, req, again, &c)
}

// repeatTimeout bounds the search for the node that has executed an earlier request.
const repeatTimeout = 20 * time.Second

// earlier() looks for a node that has executed an earlier request with the same Idempotency-Key. If
// it finds one, it passes on the answer of that node, and returns true. All nodes must answer,
// because a node without an answer may have executed the request, which would then be executed a
// second time. If a node's daemon has not reported its name, the node is not asked. Such a daemon
// may be so old that it ignores face.RepeatOnlyHeader and executes the request.
func (r *Router) earlier(ctx context.Context, w http.ResponseWriter, again func() *http.Request) (bool, error) {
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, repeatKey{}, true), repeatTimeout)
	defer cancel()
	answers, err := each(r.list(), func(n *node) (*answer, error) {
		if _, _, err := n.placeable(); err != nil {
			return nil, &face.NodeError{Node: n.Name, Err: err}
		}
		return r.hold(ctx, again(), n, maxHeld)
	})
	for _, a := range answers {
		if a != nil && a.status != http.StatusNoContent {
			a.send(w) // also an error, such as a missing token
			return true, nil
		}
	}
	return false, err
}

// each() calls do() for one node after another until a node answers. If this answer is a success,
// each() then calls do() for all other nodes concurrently. So a request without a token does not
// reach all nodes. If any call returns an error, each() returns an error together with the results
// of all other calls.
func each(nodes []*node, do func(*node) (*answer, error)) (answers []*answer, err error) {
	answers, errs := make([]*answer, len(nodes)), make([]error, len(nodes))
	begin := 0
	for begin < len(nodes) {
		answers[begin], errs[begin] = do(nodes[begin])
		begin++
		if a := answers[begin-1]; a != nil {
			if a.status >= http.StatusMultipleChoices || a.status == http.StatusCreated {
				return answers, nil
			}
			break
		}
	}
	results, places := make(chan int, len(nodes)), make(chan struct{}, maxPolls)
	for i := begin; i < len(nodes); i++ {
		places <- struct{}{}
		go func() {
			defer func() { <-places; results <- i }()
			answers[i], errs[i] = do(nodes[i])
		}()
	}
	for i := begin; i < len(nodes); i++ {
		<-results
	}
	for _, e := range errs {
		if e != nil {
			return answers, e
		}
	}
	return answers, nil
}

var errTried = errors.New("all nodes were tried")

var errCordoned = errors.New("it takes no new sandboxes: it is cordoned, or cannot run VMs; nor does another node that " +
	"has the snapshot")

// refusals are the codes with which a daemon refuses a request because of its host, before it has
// created anything.
var refusals = []string{"max_sandboxes", "max_vcpus", "host_memory", "host_disk", "no_kvm", "snapshot_not_found"}

// refuses() reports whether an answer may be a refusal that another node would not give. Successful
// answers are never held.
func refuses(resp *http.Response) bool {
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusNotFound:
		return true
	}
	return false
}

// place sends a request to the best node. If a node refuses the request, place sends it to the next
// best node.
func (r *Router) place(w http.ResponseWriter, req *http.Request, again func() *http.Request, c *creation) {
	var tried []*node
	var last *attempt
	for range maxTries {
		n, err := r.choose(req.Context(), c, tried)
		if err != nil {
			if last == nil {
				fail(w, req, err)
				return
			}
			break
		}
		a := &attempt{node: n, refused: refuses, most: maxHeld}
		done := n.placing(c.N)
		r.metrics.Placed(n.Name, n.has(c.tag()))
		r.try(w, again(), a)
		done(a.status == http.StatusCreated)
		failed := (*face.NodeError)(nil)
		switch {
		case a.err == nil && a.answer == nil:
			return // the client has the answer
		case a.answer != nil && !slices.Contains(refusals, codeOf(a.answer.body)):
			a.answer.send(w)
			return
		case errors.As(a.err, &failed) && failed.Sent:
			fail(w, req, a.err) // the node may have created the sandboxes
			return
		}
		tried, last = append(tried, n), a
	}
	if last.answer != nil {
		last.answer.send(w)
		return
	}
	fail(w, req, last.err)
}

// choose returns the best node for a request, among the nodes that were not tried yet. If no node
// is known to have the snapshot, it asks all nodes again, because the snapshot may be new.
func (r *Router) choose(ctx context.Context, c *creation, tried []*node) (*node, error) {
	n, known, err := r.best(c, tried)
	if !known && len(tried) == 0 {
		r.fresh(ctx)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		n, _, err = r.best(c, tried)
	}
	return n, err
}

// best returns the best node. It also reports whether any node that was not tried is known to have
// the snapshot. If no node at all has the snapshot, the result is any usable node. The daemon of
// that node answers that there is no such snapshot. If all nodes that have it are full, the result
// is the best of them regardless of room, and its daemon refuses the request.
func (r *Router) best(c *creation, tried []*node) (n *node, known bool, err error) {
	tag := c.tag()
	err = errTried
	var nodes []*node
	var states []*placement.Node
	req := placement.Request{Snapshot: tag, N: c.N, Each: placement.Resources{MemoryMiB: placement.AssumedMiB},
		Policy: r.cfg.Policy, Key: c.key}
	for _, n := range r.list() {
		if slices.Contains(tried, n) {
			continue
		}
		p, sizes, e := n.placeable()
		if e != nil {
			err = &face.NodeError{Node: n.Name, Err: e}
			continue
		}
		known = known || p.Has[tag] != placement.Absent
		req.SnapshotMiB = max(req.SnapshotMiB, sizes[tag])
		nodes, states = append(nodes, n), append(states, p)
	}
	if len(nodes) == 0 {
		return nil, known, err
	}
	i, e := placement.Choose(states, req)
	if e == nil {
		return nodes[i], known, nil
	}
	if !known && len(tried) > 0 {
		return nil, false, e // the answer of a node that was already tried is better
	}
	for _, p := range states {
		if p.Capacity = (placement.Resources{}); !known {
			p.FetchRate = 1 // all nodes are equally good
		}
	}
	if i, e = placement.Choose(states, req); e != nil {
		return nil, known, &face.NodeError{Node: nodes[0].Name, Err: errCordoned}
	}
	return nodes[i], known, nil
}
