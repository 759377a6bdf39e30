package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

func newMoveCmd() *cobra.Command {
	var c common
	var to, registry string
	var cancels bool
	cmd := &cobra.Command{
		Use:   "move ID NODE | ID --to URL",
		Short: "Move a sandbox to another host, under the same id",
		Long: "A running sandbox is suspended, and resumed on the other host; any other sandbox stays suspended. The\n" +
			"daemon of the other host fetches the files that it lacks, and compares every byte with its digest.\n" +
			"With a router, NODE is the name of the host. Without one, --to is the address of its daemon. The token\n" +
			"needs the scope admin on both hosts. If the command is interrupted, repeat it, or give --cancel:\n" +
			"the sandbox is never on both hosts. docs/cluster.md says what cannot move.",
		Example: "  forkd move sb-… b\n" +
			"  forkd move sb-… --to https://10.0.0.2:8889",
		Args: func(_ *cobra.Command, args []string) error {
			if want := 2; len(args) != want && to == "" || to != "" && len(args) != 1 {
				return usageError{errors.New("want an id and the name of a node, or an id and --to")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return showOf(cmd, &c, args[0], func(ctx context.Context, cl *client.Client, id string) (client.Sandbox, error) {
				m := mover{id: id, from: client.MoveHost{Client: cl}, to: client.MoveHost{Client: cl}, registry: registry}
				if to == "" {
					m.to.Node = args[1]
				} else {
					other, _, err := connectWith(ctx, to, c.ca, cmd.ErrOrStderr())
					if err != nil {
						return client.Sandbox{}, err
					}
					defer other.Close()
					m.to.Client = other
				}
				return m.run(ctx, to == "", cancels)
			}, func(s client.Sandbox) error {
				printLine(cmd.OutOrStdout(), s.ID+" "+s.State)
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&to, "to", "", "address of the other host's daemon, if there is no router")
	f.StringVar(&registry, "registry", "",
		"HOST:PORT at which the other host reaches the daemon of the first host; default: as this command or the router does")
	f.BoolVar(&cancels, "cancel", false, "undo an interrupted move, unless the first host has given the sandbox up already")
	c.completeSandboxes(cmd)
	c.register(cmd)
	return cmd
}

// mover moves a sandbox.
type mover struct {
	id       string
	from, to client.MoveHost
	registry string // empty: choose it
}

func (m *mover) run(ctx context.Context, routed, cancels bool) (s client.Sandbox, err error) {
	urls := map[string]string{"": m.from.Client.Address()} // of the nodes' daemons
	if routed {
		urls, err = m.route(ctx)
	} else {
		err = m.nameOther(ctx)
	}
	if err != nil {
		return s, err
	}
	if cancels {
		if err := client.CancelMove(ctx, m.id, m.from, m.to); err != nil {
			return s, err
		}
		return m.from.Client.Sandbox(ctx, m.id)
	}
	return client.Move(ctx, m.id, m.from, m.to, func(node string) (string, error) {
		if m.registry != "" {
			return m.registry, nil
		}
		if !routed {
			node = ""
		}
		u, err := url.Parse(urls[node])
		if err != nil || u.Host == "" {
			return "", usageError{fmt.Errorf("--registry is missing: the other host cannot reach %q", urls[node])}
		}
		return u.Host, nil
	})
}

// nameOther asks the other daemon for its name.
func (m *mover) nameOther(ctx context.Context) error {
	v, err := m.to.Client.Version(ctx)
	if err != nil {
		return err
	}
	if m.to.Node = v.Node; v.Node == "" {
		return errors.New("the other daemon has no name, so ids cannot lead to it: start it with --node NAME")
	}
	return nil
}

// route asks the router for the addresses of the nodes' daemons. If an earlier move of the sandbox
// was interrupted, route also sets the node that the sandbox leaves. Without an interrupted move,
// that node stays unset, and the router finds it for the first step.
func (m *mover) route(ctx context.Context) (map[string]string, error) {
	all, err := m.from.Client.Moves(ctx)
	if err != nil {
		return nil, err
	}
	urls := make(map[string]string)
	for _, n := range all.Nodes {
		urls[n.Node] = n.URL
		for _, s := range n.Moves {
			if s.ID != m.id || s.Phase != "leaving" && s.Phase != "left" {
				continue
			}
			if m.from.Node = n.Node; s.Node != m.to.Node {
				return nil, fmt.Errorf("sandbox %q: it is on its way from %q to %q: complete that move, or cancel it "+
					"(forkd move %s %s --cancel)", m.id, n.Node, s.Node, m.id, s.Node)
			}
		}
	}
	if urls[m.to.Node] == "" {
		return nil, usageError{fmt.Errorf("%q: there is no such node, or no router at this address; the nodes are %s", m.to.Node,
			strings.Join(slices.Sorted(maps.Keys(urls)), ", "))}
	}
	return urls, nil
}
