package router

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/cluster/placement"
)

// Bounds on what a router asks nodes about themselves.
const (
	interval    = 2 * time.Second
	pause       = 200 * time.Millisecond // between two rounds of questions, even if clients ask for unknown snapshots
	pollTimeout = 5 * time.Second        // for all questions to one node
	maxPolls    = 64                     // nodes that are asked at the same time
	maxState    = 32 << 20               // bytes of one answer with a list
	maxFacts    = 1 << 20                // bytes of another answer
	maxToken    = 4 << 10                // bytes of a file with a token
)

// status is what a router knows about a node.
type status struct {
	mu    sync.Mutex
	err   error             // why the node cannot be used
	asked bool              // the node was asked at least once
	node  placement.Node    // valid if err is nil; never changed, only replaced
	sizes map[string]uint64 // size of each snapshot, in MiB; never changed, only replaced
	moved moved             // what the node last said about moves; kept even if the node is lost
	since uint64            // sandboxes that were placed on the node since it was asked
}

var errUnknown = errors.New("it has not been asked yet")

// placeable returns the state of a node for placement, and the sizes of its snapshots. The error says
// why the node cannot be used.
func (n *node) placeable() (*placement.Node, map[string]uint64, error) {
	n.status.mu.Lock()
	defer n.status.mu.Unlock()
	s := &n.status
	switch {
	case !s.asked:
		return nil, nil, errUnknown
	case s.err != nil:
		return nil, nil, s.err
	}
	p := s.node
	p.Used.Sandboxes += s.since
	p.Used.MemoryMiB += s.since * placement.AssumedMiB
	return &p, s.sizes, nil
}

// has(tag) says where the node has the files of a snapshot, for the metrics.
func (n *node) has(tag string) string {
	n.status.mu.Lock()
	defer n.status.mu.Unlock()
	switch n.status.node.Has[tag] {
	case placement.Hot:
		return "hot"
	case placement.Cold:
		return "cold"
	}
	return "absent"
}

// maxCounted is the maximum number of sandboxes that are counted for one request. It equals a
// daemon's limit.
const maxCounted = 1000

// placing() counts the sandboxes of a request that is sent to the node. At the end, the caller
// calls the returned function and says whether the node has created them. The count is bounded by
// maxCounted, because any client can send such requests.
func (n *node) placing(count uint64) (done func(created bool)) {
	count = min(max(count, 1), maxCounted)
	n.status.mu.Lock()
	defer n.status.mu.Unlock()
	n.status.since += count
	return func(created bool) {
		n.status.mu.Lock()
		defer n.status.mu.Unlock()
		if !created {
			n.status.since -= min(count, n.status.since) // a round of questions may have reset it
		}
	}
}

// round is a round of questions to all nodes.
type round struct{ done chan struct{} }

// Run runs until ctx ends. It asks the nodes about themselves, and reads the list of nodes again
// when the file of nodes changes.
func (r *Router) Run(ctx context.Context) {
	for ctx.Err() == nil {
		r.mu.Lock()
		now := r.next
		r.next = &round{make(chan struct{})}
		r.mu.Unlock()
		_ = r.readNodes() // logs its error
		r.askAll(ctx)
		close(now.done)
		r.rest(ctx)
	}
}

// rest() waits until the next round of questions is due. Any client can wake the router, so this
// method lasts at least as long as the constant pause.
func (r *Router) rest(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(pause):
	}
	select {
	case <-ctx.Done():
	case <-r.wake:
	case <-time.After(interval - pause):
	}
}

// fresh waits for the end of a round of questions that begins after the call. All callers that wait
// share one round, so requests for unknown snapshots cannot multiply the questions.
func (r *Router) fresh(ctx context.Context) {
	r.mu.Lock()
	next := r.next
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
	select {
	case <-next.done:
	case <-ctx.Done():
	}
}

func (r *Router) askAll(ctx context.Context) {
	var all sync.WaitGroup
	places := make(chan struct{}, maxPolls)
	for _, n := range r.list() {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			ctx, cancel := context.WithTimeout(ctx, r.pollTimeout)
			defer cancel()
			p, sizes, moves, err := n.ask(ctx)
			if ctx.Err() != nil && err != nil {
				err = fmt.Errorf("it does not answer: %w", err)
			}
			s := &n.status
			s.mu.Lock()
			changed := s.asked && (s.err == nil) != (err == nil)
			s.asked, s.err, s.node, s.sizes, s.since = true, err, p, sizes, 0
			if err == nil {
				s.moved = movedOf(moves)
			}
			s.mu.Unlock()
			if changed && err != nil {
				r.cfg.Log.Warn("a node is lost", "node", n.Name, "error", err)
			} else if changed {
				r.cfg.Log.Info("a node is back", "node", n.Name)
			}
		})
	}
	all.Wait()
}

// ask asks a node about itself.
func (n *node) ask(ctx context.Context) (p placement.Node, sizes map[string]uint64, moves *movesAnswer, err error) {
	moves = new(movesAnswer)
	var v apiv1.Version
	var host apiv1.HostMetrics
	var snapshots members[apiv1.Snapshot]
	for path, out := range map[string]any{"/version": &v, "/v1/host/metrics?since=10s": &host,
		snapshotsPath: &snapshots, movesPath: moves} {
		if err := n.get(ctx, path, out); err != nil {
			return p, nil, nil, err
		}
	}
	if v.Node != n.Name {
		return p, nil, nil, fmt.Errorf("its daemon has --node %q: want %q", v.Node, n.Name)
	}
	p, sizes = placement.Observed(n.Name, n.Cordoned, &v, &host, snapshots)
	return p, sizes, moves, nil
}

// Paths of lists. Daemons of earlier releases do not have the list of moves.
const (
	snapshotsPath = "/v1/snapshots"
	movesPath     = "/v1/moves"
)

// get asks a node with the router's own token.
func (n *node) get(ctx context.Context, path string, out any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.base.String()+path, nil)
	if err != nil {
		return err
	}
	if n.TokenFile != "" {
		token, err := readSmall(n.TokenFile, maxToken)
		if err != nil {
			return fmt.Errorf("token_file: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	req.Header.Set("User-Agent", "forkd-router")
	resp, err := n.transport.RoundTrip(req) // does not follow a redirect, because its target would get the token
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if path == movesPath && resp.StatusCode == http.StatusNotFound {
		return nil
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: status %d: the router's token needs the scope read, without a label prefix", path,
			resp.StatusCode)
	}
	most := int64(maxFacts)
	if path == snapshotsPath || path == movesPath {
		most = maxState
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, most)).Decode(out); err != nil {
		return fmt.Errorf("GET %s: answer: %w", path, err)
	}
	return nil
}
