package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

// registryOptions are the flags of commands that have the daemon talk to a registry.
type registryOptions struct {
	auth     []string
	progress string
}

// registerMirrors adds a flag for mirrors.
func registerMirrors(cmd *cobra.Command, mirrors *[]string) {
	cmd.Flags().StringArrayVar(mirrors, "mirror", nil,
		"repository REGISTRY/NAME with the same files, used if the registry fails (repeatable)")
}

func (o *registryOptions) registerAuth(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&o.auth, "registry-auth", nil,
		"HOST of the registry, if the daemon may use your 'docker login' there for this command")
}

func (o *registryOptions) register(cmd *cobra.Command) {
	o.registerAuth(cmd)
	cmd.Flags().StringVar(&o.progress, "progress", "auto", "auto, plain or tty")
	completeWords(cmd, "progress", "auto", "plain", "tty")
}

// follow returns two functions: on(e) shows on w the event e of a push, a pull or a copy, and end()
// ends the display.
func (o *registryOptions) follow(w io.Writer) (on func(client.HubEvent) error, end func()) {
	p := &hubProgress{progress: newProgress(w, isLive(o.progress, w)), numbers: make(map[string]int)}
	return p.event, func() { p.finish(); p.end() }
}

func newPushCmd() *cobra.Command {
	var c common
	var o registryOptions
	var recordHot bool
	var oldTag string
	cmd := &cobra.Command{
		Use:   "push TAG REGISTRY/NAME:TAG|URL",
		Short: "Push a snapshot to an OCI registry, or its archive to a web server",
		Long: "The daemon sends all files of a snapshot that the registry lacks, several at a time, and then the tag. An\n" +
			"interrupted push leaves no tag, and the next one sends only the rest. The registry gets everything that the\n" +
			"guest had in its memory and on its disk, as 'forkd pack' describes: push to private repositories only.\n" +
			"Without --registry-auth the daemon uses the 'docker login' of its own user.\n\n" +
			"With --record-hot, the daemon first runs the snapshot twice, without a network and until its first answer.\n" +
			"It also pushes a list of the data that both runs read. A daemon that forks the snapshot while it arrives\n" +
			"fetches this data first.\n\n" +
			"OWNER/NAME or OWNER/NAME@VERSION names a repository in the registry of $FORKD_HUB_URL. To https://…, such as\n" +
			"the presigned URL of a bucket, this command sends the archive of 'forkd pack' with the method PUT.",
		Example: "  forkd push python-numpy ghcr.io/owner/python-numpy:1 --registry-auth ghcr.io\n" +
			"  forkd push python-numpy ghcr.io/owner/python-numpy:1 --record-hot",
		Args: usageArgs(arguments(1, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkProgress(o.progress); err != nil {
				return err
			}
			args, err := withTag(cmd, args, oldTag)
			if err != nil {
				return err
			}
			c.streams = true
			if u, err := archiveURL(args[1]); err != nil {
				return err
			} else if u != nil {
				if len(o.auth) > 0 || recordHot {
					return usageError{errors.New("--registry-auth and --record-hot are for REGISTRY/NAME:TAG")}
				}
				return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
					return pushArchive(ctx, cmd, cl, args[0], u)
				})
			}
			if args[1], err = hubReference(args[1]); err != nil {
				return err
			}
			auths, err := registryAuth(cmd.Context(), o.auth)
			if err != nil {
				return err
			}
			return show(cmd, &c, func(ctx context.Context, cl *client.Client) (client.HubResult, error) {
				on, end := o.follow(cmd.ErrOrStderr())
				defer end()
				return cl.PushSnapshot(ctx, args[0],
					client.PushRequest{Reference: args[1], RegistryAuth: auths, RecordHot: recordHot}, on)
			}, func(r client.HubResult) error {
				printLine(cmd.OutOrStdout(), r.Reference)
				printf(cmd.ErrOrStderr(),
					"forkd: pushed %s in %.1f s, sent %s\n", mib(uint64(r.Bytes)), r.MS/1000, mib(uint64(r.Moved)))
				if recordHot {
					printf(cmd.ErrOrStderr(), "forkd: first forks need %d frames\n", r.HotFrames)
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&recordHot, "record-hot", false,
		"run the snapshot twice, and also push a list of the data that its first forks read")
	registerOldTag(cmd, &oldTag)
	o.register(cmd)
	c.completeTags(cmd)
	c.register(cmd)
	return cmd
}

func newPullCmd() *cobra.Command {
	var c common
	var o registryOptions
	var tag, trust string
	var mirrors []string
	var inspect, lazy bool
	cmd := &cobra.Command{
		Use:   "pull REGISTRY/NAME:TAG|URL",
		Short: "Fetch a snapshot from an OCI registry, another daemon or a web server",
		Long: "The daemon fetches those files of the snapshot that it lacks, several at a time, and prints the tag of the\n" +
			"new snapshot. A key that the daemon trusts must have signed it, unless the daemon's --trust says\n" +
			"otherwise. The daemon compares every byte with its digest. NAME@DIGEST instead of NAME:TAG always names\n" +
			"the same snapshot. An interrupted pull leaves no snapshot, and the next one goes on with the missing files.\n" +
			"The snapshot gets the daemon's default network policy and limits, and every client of the daemon may fork\n" +
			"it. Without --registry-auth the daemon uses the 'docker login' of its own user. HOST:PORT/TAG:latest pulls a\n" +
			"snapshot from another daemon, with one of its tokens as the password. 'forkd build docker://IMAGE' pulls a\n" +
			"container image.\n\n" +
			"OWNER/NAME or OWNER/NAME@VERSION names a repository in the registry of $FORKD_HUB_URL. From https://…, this\n" +
			"command fetches an archive of 'forkd pack', as 'forkd unpack' does from a file.",
		Example: "  forkd pull ghcr.io/owner/python-numpy:1 --inspect\n" +
			"  forkd pull ghcr.io/owner/python-numpy:1 --tag numpy-2\n" +
			"  forkd pull host-a:8889/python-numpy:latest --registry-auth host-a:8889",
		Args: usageArgs(arguments(1, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkProgress(o.progress); err != nil {
				return err
			}
			if !strings.Contains(args[0], "/") {
				return usageError{fmt.Errorf("%.100q names no registry: want REGISTRY/NAME:TAG; "+
					"'forkd build docker://IMAGE' pulls a container image", args[0])}
			}
			if u, err := archiveURL(args[0]); err != nil {
				return err
			} else if u != nil {
				if inspect || lazy || len(mirrors)+len(o.auth) > 0 {
					return usageError{errors.New("--inspect, --lazy, --mirror and --registry-auth are for REGISTRY/NAME:TAG")}
				}
				return show(cmd, &c, func(ctx context.Context, cl *client.Client) (client.HubResult, error) {
					return pullArchive(ctx, cl, u, client.UnpackOptions{Tag: tag, Trust: trust})
				}, showMoved(cmd, "pulled"))
			}
			if inspect && (tag != "" || trust != "" || lazy || len(mirrors) > 0) {
				return usageError{errors.New("--inspect makes no snapshot: omit --tag, --trust, --lazy and --mirror")}
			}
			reference, err := hubReference(args[0])
			if err != nil {
				return err
			}
			auths, err := registryAuth(cmd.Context(), o.auth)
			if err != nil {
				return err
			}
			if inspect {
				return show(cmd, &c, func(ctx context.Context, cl *client.Client) (client.RemoteSnapshot, error) {
					return cl.FindSnapshot(ctx, client.FindRequest{Reference: reference, RegistryAuth: auths})
				}, func(s client.RemoteSnapshot) error { return describeRemote(cmd.OutOrStdout(), s) })
			}
			req := client.PullRequest{Reference: reference, Tag: tag, Trust: trust, RegistryAuth: auths, Lazy: lazy,
				Mirrors: mirrors}
			c.streams = true
			return show(cmd, &c, func(ctx context.Context, cl *client.Client) (client.HubResult, error) {
				on, end := o.follow(cmd.ErrOrStderr())
				defer end()
				return cl.PullSnapshot(ctx, req, on)
			}, func(r client.HubResult) error {
				if r.Snapshot != nil {
					printLine(cmd.OutOrStdout(), r.Snapshot.Tag)
				}
				showTrust(cmd, r)
				printf(cmd.ErrOrStderr(), "forkd: pulled %s in %.1f s, fetched %s: %s\n", mib(uint64(r.Bytes)),
					r.MS/1000, mib(uint64(r.Moved)), r.Digest)
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&tag, "tag", "", "tag of the snapshot (default that of the pushed one)")
	cmd.Flags().BoolVar(&inspect, "inspect", false,
		"describe the snapshot in the registry, and say what a pull would fetch and whether this host can run it")
	cmd.Flags().BoolVar(&lazy, "lazy", false, "return as soon as the snapshot can be forked; the rest arrives later")
	registerTrust(cmd, &trust)
	registerMirrors(cmd, &mirrors)
	o.register(cmd)
	c.register(cmd)
	return cmd
}

// describeRemote prints a snapshot in a registry.
func describeRemote(w io.Writer, s client.RemoteSnapshot) error {
	printf(w, "reference: %s\ntag: %s\ncreated: %s\n", s.Reference, s.Tag,
		time.Unix(s.CreatedAt, 0).UTC().Format(time.RFC3339))
	printf(w, "memory: %d MiB\nvcpus: %d\ncpu template: %s\nkernel: %s\n", s.MemSizeMiB, s.VCPUs, s.CPUTemplate, s.Kernel)
	printf(w, "size: %s compressed\nto fetch: %s\n", mib(uint64(s.Bytes)), mib(uint64(s.LackingBytes)))
	if s.Problem != "" {
		printf(w, "problem: %s\n", s.Problem)
	}
	if s.SignedBy != "" {
		printf(w, "signed by: %s\n", s.SignedBy)
	}
	if s.TrustProblem != "" {
		printf(w, "not trusted: %s\n", s.TrustProblem)
	}
	return nil
}

// hubProgress shows a push or a pull like a build: each file of the snapshot is a step.
type hubProgress struct {
	*progress
	numbers map[string]int // index of the step of each file whose step has begun
	steps   []string
	unpack  int // index, plus 1, of the step that unpacks the files; 0 if this step has not begun
}

func (p *hubProgress) event(e client.HubEvent) error {
	f := e.File
	if f == nil {
		return nil
	}
	switch f.State {
	case "unpacked":
		if p.unpack == 0 {
			n, err := p.begin("unpack")
			p.unpack = n + 1
			return err
		}
		return nil
	case "pulling", "pushing":
		n, ok := p.numbers[f.Name]
		if !ok {
			var err error
			if n, err = p.begin(f.Name); err != nil {
				return err
			}
			p.numbers[f.Name] = n
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.last[n] = []string{mib(uint64(f.Done)) + " of " + mib(uint64(f.Bytes))}
		return nil
	}
	n, ok := p.numbers[f.Name]
	state := "done"
	if f.State == "shared" || f.State == "cached" || f.State == "exists" {
		state = "cached"
	}
	if !ok {
		var err error
		if n, err = p.plan(f.Name); err != nil {
			return err
		}
	}
	return p.step(n, state)
}

// plan adds a step.
func (p *hubProgress) plan(name string) (n int, err error) {
	p.steps = append(p.steps, name)
	return len(p.steps) - 1, p.progress.event(client.BuildEvent{Plan: &client.BuildPlan{Steps: p.steps}})
}

// begin adds a step and starts it.
func (p *hubProgress) begin(name string) (n int, err error) {
	if n, err = p.plan(name); err != nil {
		return n, err
	}
	return n, p.step(n, "started")
}

func (p *hubProgress) step(n int, state string) error {
	return p.progress.event(client.BuildEvent{Step: &client.BuildStep{Number: n, State: state}})
}

// finish ends the step that unpacks the files.
func (p *hubProgress) finish() {
	if p.unpack > 0 {
		_ = p.step(p.unpack-1, "done") // step returns no error: only the event of a plan can fail
	}
}
