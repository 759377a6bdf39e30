package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

func newCopyCmd() *cobra.Command {
	var c common
	var o registryOptions
	var trust string
	cmd := &cobra.Command{
		Use:   "copy FROM TO",
		Short: "Copy a snapshot from one OCI registry to another",
		Long: "FROM is REGISTRY/NAME:TAG or REGISTRY/NAME@DIGEST, and TO is REGISTRY/NAME:TAG. The daemon fetches the\n" +
			"files that the target registry lacks, several at a time, compares every byte with its digest, and sends it\n" +
			"on. It keeps nothing in its store or on its disk. The signatures of trusted keys are copied too (if there is\n" +
			"none, all signatures), and the tag is written last. An interrupted copy leaves no tag, and the next one\n" +
			"sends only the missing files. Within one registry, files are mounted, if the registry supports it. A key\n" +
			"that the daemon trusts must have signed the snapshot, unless the daemon's --trust says otherwise.\n" +
			"Without --registry-auth the daemon uses the 'docker login' of its own user. 'forkd cp' copies files.",
		Example: "  forkd copy ghcr.io/owner/python-numpy:1 registry.example/team/python-numpy:1\n" +
			"  forkd copy ghcr.io/owner/numpy:1 ghcr.io/owner/numpy:stable --registry-auth ghcr.io",
		Args: usageArgs(arguments(2, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkProgress(o.progress); err != nil {
				return err
			}
			for _, reference := range args {
				if !strings.Contains(reference, "/") {
					return usageError{fmt.Errorf("%.100q names no registry: want REGISTRY/NAME:TAG; 'forkd push' sends a "+
						"snapshot of the daemon, and 'forkd cp' copies files", reference)}
				}
			}
			auths, err := registryAuth(cmd.Context(), o.auth)
			if err != nil {
				return err
			}
			req := client.CopyRequest{From: args[0], To: args[1], Trust: trust, RegistryAuth: auths}
			c.streams = true
			return show(cmd, &c, func(ctx context.Context, cl *client.Client) (client.HubResult, error) {
				on, end := o.follow(cmd.ErrOrStderr())
				defer end()
				return cl.CopySnapshot(ctx, req, on)
			}, func(r client.HubResult) error {
				printLine(cmd.OutOrStdout(), r.Reference)
				showTrust(cmd, r)
				printf(cmd.ErrOrStderr(), "forkd: copied %s in %.1f s, sent %s; signatures: %d\n", mib(uint64(r.Bytes)),
					r.MS/1000, mib(uint64(r.Moved)), r.Signatures)
				return nil
			})
		},
	}
	registerTrust(cmd, &trust)
	o.register(cmd)
	c.register(cmd)
	return cmd
}
