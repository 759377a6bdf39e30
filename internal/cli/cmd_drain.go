package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

// Bounds of a drain.
const (
	drainParallel = 4  // default number of concurrent moves
	maxParallel   = 32 // concurrent moves
	drainTries    = 3  // nodes that are asked to take one sandbox
	drainRounds   = 4  // lists of the node: sandboxes may arrive during the drain
	drainPage     = 500
	drainFresh    = 2 * time.Second // age at which the loads of the nodes are asked for again

	// At the end the node is listed again after this time, because the router's lists lack sandboxes
	// that have just moved to the node (docs/cluster.md).
	drainSettle = 5 * time.Second
)

func newDrainCmd() *cobra.Command {
	var c common
	d := drainer{moved: []client.Sandbox{}, failed: map[string]error{}, coming: map[string]uint64{}}
	cmd := &cobra.Command{
		Use:   "drain NODE",
		Short: "Move all sandboxes of a node to other nodes",
		Long: "Needs a router, and a token with the scope admin. Each sandbox moves as with 'forkd move', to the node with\n" +
			"the lowest load. First set \"cordoned\": true for NODE in the router's list of nodes, so that no new\n" +
			"sandboxes arrive. The command continues after failures. At the end it says what is left on the node, and\n" +
			"why; its exit code is then 1. If it is interrupted, repeat it. docs/cluster.md says what cannot move.",
		Example: "  forkd drain a\n" +
			"  forkd drain a --to b,c --parallel 2",
		Args: usageArgs(arguments(1, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if d.parallel < 1 || d.parallel > maxParallel {
				return usageError{fmt.Errorf("--parallel %d: want 1 to %d", d.parallel, maxParallel)}
			}
			d.node = args[0]
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				d.cl = cl
				if !c.json() {
					d.say = func(s client.Sandbox, to string) { printLine(cmd.OutOrStdout(), s.ID, to, s.State) }
				}
				left, err := d.run(ctx)
				if err != nil {
					return err
				}
				if c.json() {
					out := map[string]any{"moved": d.moved, "left": left}
					if err := writeJSON(cmd.OutOrStdout(), out); err != nil {
						return err
					}
				}
				if len(left) == 0 {
					return nil
				}
				for _, l := range left {
					printf(cmd.ErrOrStderr(), "forkd: %s: %s\n", l.ID, l.Error)
				}
				return fmt.Errorf("node %q: %s left, %d moved", d.node, count(len(left), "sandbox is", "sandboxes are"),
					len(d.moved))
			})
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&d.to, "to", nil, "names of the nodes that take the sandboxes; default: all nodes that take new sandboxes")
	f.IntVar(&d.parallel, "parallel", drainParallel, fmt.Sprintf("number of sandboxes that move at a time, 1 to %d",
		maxParallel))
	f.BoolVar(&d.force, "force", false, "even if NODE is not cordoned")
	f.StringVar(&d.registry, "registry", "",
		"HOST:PORT at which the other nodes reach the daemon of NODE; default: as the router does")
	c.register(cmd)
	return cmd
}

// drainer moves the sandboxes of one node to other nodes.
type drainer struct {
	cl       *client.Client
	node     string
	to       []string // names of the nodes that may take sandboxes; empty: all that take new sandboxes
	parallel int
	force    bool
	registry string                            // empty: the address that the router uses
	say      func(s client.Sandbox, to string) // called for each sandbox that has moved, never concurrently; may be nil

	mu     sync.Mutex
	nodes  []client.RouterNode // what the router last said about its nodes
	asked  time.Time           // when it said that
	coming map[string]uint64   // number of sandboxes that are moving to each node
	moved  []client.Sandbox
	failed map[string]error // why sandboxes did not move, by id
}

// leaving is a sandbox that must leave the node.
type leaving struct {
	id    string
	to    string // where an interrupted move goes; empty: there is none
	given bool   // the node has given the sandbox up, so only that move can be completed
}

// leftOver is a sandbox that is left on the node.
type leftOver struct {
	ID    string `json:"id"`
	Error string `json:"error"`
}

// run moves all sandboxes that can move. It returns those that are left on the node.
func (d *drainer) run(ctx context.Context) ([]leftOver, error) {
	if err := d.check(ctx); err != nil {
		return nil, err
	}
	seen, settled := map[string]bool{}, false
	for round := 0; ; round++ {
		all, err := d.list(ctx)
		if err != nil {
			return nil, err
		}
		var work []leaving
		for _, l := range all {
			if !seen[l.id] || l.given { // an incomplete move is worth another try
				work, seen[l.id] = append(work, l), true
			}
		}
		if len(work) == 0 && !settled {
			settled = true
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(drainSettle):
			}
			continue
		}
		if len(work) == 0 || round >= drainRounds {
			return d.reasons(all), nil
		}
		if d.moveAll(ctx, work); ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

// check refuses a drain that could not empty the node.
func (d *drainer) check(ctx context.Context) error {
	if err := d.ask(ctx); err != nil {
		return err
	}
	for _, name := range append([]string{d.node}, d.to...) {
		n := d.named(name)
		switch {
		case n == nil:
			return usageError{fmt.Errorf("%q: there is no such node; the nodes are %s", name, d.names())}
		case name == d.node && !n.Cordoned && !d.force:
			return fmt.Errorf("node %q is not cordoned, so new sandboxes would arrive: set \"cordoned\": true for it in the router's "+
				"list of nodes, or give --force", name)
		case name != d.node && n.Cordoned:
			return usageError{fmt.Errorf("--to %q: this node is cordoned: name a node that takes new sandboxes", name)}
		}
	}
	if slices.Contains(d.to, d.node) {
		return usageError{fmt.Errorf("--to %q: this is the node to empty", d.node)}
	}
	return nil
}

// ask asks the router for its nodes.
func (d *drainer) ask(ctx context.Context) error {
	all, err := d.cl.Nodes(ctx)
	if errors.Is(err, client.ErrNoSuchRoute) {
		return fmt.Errorf("%s is no router: a daemon knows no other nodes; 'forkd move ID --to URL' moves a sandbox without "+
			"a router", d.cl.Address())
	}
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nodes, d.asked = all.Nodes, time.Now()
	return nil
}

func (d *drainer) named(name string) *client.RouterNode {
	d.mu.Lock()
	defer d.mu.Unlock()
	if i := slices.IndexFunc(d.nodes, func(n client.RouterNode) bool { return n.Name == name }); i >= 0 {
		return &d.nodes[i]
	}
	return nil
}

func (d *drainer) names() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []string
	for _, n := range d.nodes {
		all = append(all, n.Name)
	}
	return strings.Join(all, ", ")
}

// list returns the sandboxes of the node, and those whose move from the node was interrupted.
func (d *drainer) list(ctx context.Context) (all []leaving, err error) {
	moves, err := d.cl.Moves(ctx)
	if err != nil {
		return nil, err
	}
	under := map[string]bool{}
	for _, n := range moves.Nodes {
		if n.Node != d.node {
			continue
		}
		if n.Error != "" {
			return nil, fmt.Errorf("node %q: %s", n.Node, n.Error)
		}
		for _, m := range n.Moves {
			if m.Phase == "leaving" || m.Phase == "left" {
				all, under[m.ID] = append(all, leaving{m.ID, m.Node, m.Phase == "left"}), true
			}
		}
	}
	for page := (client.PageRequest{Node: d.node, Limit: drainPage}); ; {
		list, next, err := d.cl.SandboxPage(ctx, page)
		if err != nil {
			return nil, err
		}
		for _, s := range list {
			if !under[s.ID] {
				all = append(all, leaving{id: s.ID})
			}
		}
		if page.Cursor = next; next == "" {
			return all, nil
		}
	}
}

// reasons says why sandboxes are left on the node.
func (d *drainer) reasons(all []leaving) []leftOver {
	left := []leftOver{}
	for _, l := range all {
		reason := errors.New("it arrived during the drain: repeat the command")
		if err := d.failed[l.id]; err != nil {
			reason = err
		}
		left = append(left, leftOver{l.id, reason.Error()})
	}
	return left
}

// moveAll moves sandboxes, a few at a time. After an interrupt it begins no other move.
func (d *drainer) moveAll(ctx context.Context, work []leaving) {
	places := make(chan struct{}, d.parallel)
	var all sync.WaitGroup
	for _, l := range work {
		places <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		all.Go(func() {
			defer func() { <-places }()
			s, to, err := d.move(ctx, l)
			d.mu.Lock()
			defer d.mu.Unlock()
			if d.failed[l.id] = err; err != nil {
				return
			}
			if d.moved = append(d.moved, s); d.say != nil {
				d.say(s, to)
			}
		})
	}
	all.Wait()
}

// move moves one sandbox. If a node cannot take it, the next node is asked.
func (d *drainer) move(ctx context.Context, l leaving) (s client.Sandbox, to string, err error) {
	if l.to != "" && !l.given && !d.takes(l.to) {
		if _, err := d.cl.MoveStep(ctx, d.node, l.id, client.MoveStep{Step: "cancel"}); err != nil {
			return s, "", err
		}
		l.to = ""
	}
	var tried []string
	for {
		next, done, none := d.choose(ctx, l.to, tried)
		if none != nil {
			return s, "", cmp.Or(err, none)
		}
		from, onto := client.MoveHost{Client: d.cl, Node: d.node}, client.MoveHost{Client: d.cl, Node: next}
		s, err = client.Move(ctx, l.id, from, onto, func(string) (string, error) { return d.address() })
		done()
		tried = append(tried, next)
		var refused *client.ArriveError
		if err == nil || !errors.As(err, &refused) || l.given || len(tried) == drainTries || ctx.Err() != nil {
			return s, next, err
		}
		l.to = "" // the interrupted move was cancelled
	}
}

// address returns the HOST:PORT at which the other nodes reach the daemon of the node.
func (d *drainer) address() (string, error) {
	if d.registry != "" {
		return d.registry, nil
	}
	n := d.named(d.node)
	if n == nil {
		return "", fmt.Errorf("the router has no node %q any more", d.node)
	}
	u, err := url.Parse(n.URL)
	if err != nil || u.Host == "" {
		return "", fmt.Errorf("--registry is missing: the other nodes cannot reach %q", n.URL)
	}
	return u.Host, nil
}

// takes reports whether a node may take sandboxes.
func (d *drainer) takes(name string) bool {
	n := d.named(name)
	return n != nil && d.isTarget(n)
}

func (d *drainer) isTarget(n *client.RouterNode) bool {
	return n.Name != d.node && !n.Cordoned && n.Error == "" && (len(d.to) == 0 || slices.Contains(d.to, n.Name))
}

// assumedMiB is the memory that a sandbox is expected to need on its new node.
const assumedMiB = 64

// choose chooses the node with the lowest load for a sandbox, or the node whose name is given. The
// caller calls done at the end of the move.
func (d *drainer) choose(ctx context.Context, given string, tried []string) (to string, done func(), err error) {
	d.mu.Lock()
	old := time.Since(d.asked) > drainFresh
	d.mu.Unlock()
	if old {
		if err := d.ask(ctx); err != nil {
			return "", nil, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	to = given
	best := 0.0
	for i := range d.nodes {
		n := &d.nodes[i]
		if given != "" || !d.isTarget(n) || slices.Contains(tried, n.Name) {
			continue
		}
		load := n.Load
		switch more := float64(d.coming[n.Name]); {
		case n.MaxSandboxes > 0:
			load = max(load, (float64(n.Sandboxes)+more)/float64(n.MaxSandboxes))
		case n.MemoryMiB > 0:
			load = max(load, (float64(n.UsedMemoryMiB)+more*assumedMiB)/float64(n.MemoryMiB))
		default:
			load += more
		}
		if to == "" || load < best {
			to, best = n.Name, load
		}
	}
	if to == "" {
		return "", nil, errors.New("no other node can take it: want a node that answers the router and is not cordoned")
	}
	d.coming[to]++
	return to, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.coming[to]--
	}, nil
}
