package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

// parseEnv turns NAME=VALUE arguments into a map.
func parseEnv(pairs []string) (map[string]string, error) {
	env := make(map[string]string, len(pairs))
	for _, p := range pairs {
		name, value, ok := strings.Cut(p, "=")
		if !ok || name == "" {
			return nil, usageError{fmt.Errorf("--env %q: want NAME=VALUE", p)}
		}
		env[name] = value
	}
	return env, nil
}

func newForkCmd() *cobra.Command {
	var c common
	req := client.ForkRequest{N: 1}
	var env, envFiles, labels []string
	var network networkFlags
	var limits limitFlags
	var hooks hookFlags
	var dirs hostDirs
	var old oldFork
	var remote remoteFork
	cmd := &cobra.Command{
		Use:   "fork TAG | REGISTRY/NAME:TAG | --from-sandbox ID",
		Short: "Start sandboxes from a snapshot, or from a running sandbox",
		Long: "Starts n sandboxes from the snapshot TAG, or from the current state of the sandbox ID, and prints their\n" +
			"ids. Either all of them start or none remain, unless --allow-partial is given. REGISTRY/NAME:TAG pulls a\n" +
			"snapshot as 'forkd pull --lazy' does, unless the daemon has it, and starts sandboxes before all of it\n" +
			"is there.",
		Args: usageArgs(func(_ *cobra.Command, args []string) error { return oneSource(args, req.SourceID, old.tag) }),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if req.Env, err = readEnv(envFiles, env); err != nil {
				return err
			}
			if req.Labels, err = parseLabels(labels); err != nil {
				return err
			}
			if len(args) == 1 {
				req.SnapshotTag = args[0]
			}
			if err = network.giveTo(&req); err != nil {
				return err
			}
			req.Limits = limits.given()
			if req.Hooks, err = hooks.given(); err != nil {
				return err
			}
			if err := dirs.pack(); err != nil {
				return err
			}
			defer dirs.close()
			req.Volumes = dirs.volumes
			switch {
			case old.tag != "" && cmd.Name() == spawn: // sandboxes of the old command spawn outlive the command
				req.SnapshotTag = old.tag
			case old.tag != "" && len(dirs.given) > 0:
				return usageError{errors.New("--volume is not possible with --tag: give the TAG without a flag")}
			case old.tag != "":
				return old.run(cmd, &c, req)
			}
			return show(cmd, &c, func(ctx context.Context, cl *client.Client) (f client.Forked, err error) {
				if req.SourceID != "" {
					if req.SourceID, err = sandboxID(ctx, cl, req.SourceID); err != nil {
						return f, err
					}
				}
				if req.SnapshotTag, err = remote.pull(ctx, cmd, cl, req.SnapshotTag); err != nil {
					return f, err
				}
				if f, err = dirs.fork(ctx, cl, req, false, cmd.ErrOrStderr()); err != nil {
					return f, err
				}
				return f, dirs.copyInto(ctx, cl, f.Sandboxes...)
			}, func(f client.Forked) error { printForked(cmd, f); return nil })
		},
	}
	f := cmd.Flags()
	f.IntVarP(&req.N, "count", "n", 1, "number of sandboxes, 1 to 1000")
	f.StringVar(&req.SourceID, "from-sandbox", "", "branch this running sandbox, and fork the branch")
	f.StringVar(&req.Mode, "mode", "", "with --from-sandbox: live (default), diff or full")
	f.Var((*secondsValue)(&req.IdleTimeoutSecs), "idle-timeout-secs",
		"suspend a sandbox after this many seconds without a request, until the next one; 0: never")
	f.StringArrayVarP(&env, "env", "e", nil, "NAME=VALUE for the sandboxes' environment (repeatable)")
	f.StringArrayVar(&envFiles, "env-file", nil, "file with a NAME=VALUE on each line (repeatable)")
	labelFlag(f, &labels)
	f.StringVar(&req.HostnamePrefix, "hostname-prefix", "", "host names are <prefix>-<part of the id> (default sb)")
	uniqueFlag(cmd, &req.Unique)
	f.BoolVar(&req.AllowPartial, "allow-partial", false, "keep the sandboxes that started if others failed")
	f.Var((*secondsValue)(&req.TTLSecs), "ttl-secs", "delete the sandboxes after this many seconds; 0: never")
	limits.register(f)
	hooks.register(cmd, f)
	dirs.register(f)
	c.completeVolumes(cmd)
	network.registerNew(cmd)
	f.BoolVar(&req.PerChildNetns, "per-child-netns", false,
		"of forkd 0.5; no effect: every child has a network of its own already")
	_ = f.MarkHidden("per-child-netns") // fails only for a flag that does not exist
	old.register(f)
	remote.register(cmd)
	c.completeTags(cmd)
	c.completeFlag(cmd, "from-sandbox", sandboxNames)
	c.completeFlag(cmd, "tag", tags)
	completeWords(cmd, "mode", "live", "diff", "full")
	c.register(cmd)
	return cmd
}

// oneSource returns an error unless exactly one source of the sandboxes is given.
func oneSource(args []string, others ...string) error {
	given := len(args)
	for _, other := range others {
		if other != "" {
			given++
		}
	}
	if given != 1 {
		return errors.New("name one snapshot ('forkd images' lists them), or give --from-sandbox ID")
	}
	return nil
}

// remoteFork has the flags for a fork of a snapshot in a registry.
type remoteFork struct {
	registryOptions
	trust   string
	mirrors []string
}

func (r *remoteFork) register(cmd *cobra.Command) {
	registerTrust(cmd, &r.trust)
	registerMirrors(cmd, &r.mirrors)
	r.registerAuth(cmd)
}

// pull returns the tag of the snapshot that a reference names. If the daemon does not have this
// snapshot yet, pull pulls it first. If name is a tag, pull only returns the tag.
func (r *remoteFork) pull(ctx context.Context, cmd *cobra.Command, cl *client.Client, name string) (string, error) {
	if !strings.Contains(name, "/") {
		if r.trust != "" || len(r.auth)+len(r.mirrors) > 0 {
			return "", usageError{errors.New("--trust, --mirror and --registry-auth are for REGISTRY/NAME:TAG")}
		}
		return name, nil
	}
	name, err := hubReference(name)
	if err != nil {
		return "", err
	}
	auths, err := registryAuth(ctx, r.auth)
	if err != nil {
		return "", err
	}
	req := client.PullRequest{Reference: name, Trust: r.trust, RegistryAuth: auths, Lazy: true, Reuse: true,
		Mirrors: r.mirrors}
	got, err := cl.PullSnapshot(ctx, req, func(client.HubEvent) error { return nil })
	if err != nil {
		return "", err
	}
	showTrust(cmd, got)
	if got.Snapshot == nil {
		return "", errors.New("the daemon does not name the new snapshot")
	}
	return got.Snapshot.Tag, nil
}

// printForked prints the ids of new sandboxes to standard output, and figures to standard error.
func printForked(cmd *cobra.Command, f client.Forked) {
	for _, s := range f.Sandboxes {
		printLine(cmd.OutOrStdout(), s.ID)
	}
	printf(cmd.ErrOrStderr(), "forkd: %s, confirmed after %.1f ms (vCPUs running after %.1f ms)\n",
		count(len(f.Sandboxes), "sandbox", "sandboxes"), f.ForkWallMS, f.VMMWallMS)
	printRepeats(cmd, f.Sandboxes...)
	if f.Failed > 0 {
		printf(cmd.ErrOrStderr(), "forkd: sandboxes that did not start: %d (%d of them unconfirmed)\n", f.Failed, f.Unconfirmed)
	}
}
