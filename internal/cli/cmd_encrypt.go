package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

func newEncryptCmd() *cobra.Command {
	return newFamilyCmd(familyVerb{use: "encrypt", short: "Encrypt a snapshot on the disk",
		long: "Encrypts the files of the snapshot, and of all snapshots that have data of it, with one new key. The daemon must\n" +
			"have been started with --key-file or --kms-command. No sandbox may run from these snapshots meanwhile. Later forks\n" +
			"decrypt them into RAM, and their branches and suspended states are encrypted too.",
		done: "encrypted", nothing: "is already encrypted", call: (*client.Client).EncryptSnapshot})
}

func newDecryptCmd() *cobra.Command {
	return newFamilyCmd(familyVerb{use: "decrypt", short: "Decrypt a snapshot on the disk",
		long: "Decrypts the files of the snapshot, and of all snapshots that have data of it. Keys that are no longer used are\n" +
			"destroyed. No sandbox may run from these snapshots meanwhile.",
		done: "decrypted", nothing: "is not encrypted", call: (*client.Client).DecryptSnapshot})
}

func newShredCmd() *cobra.Command {
	return newFamilyCmd(familyVerb{use: "shred", short: "Destroy the key of an encrypted snapshot",
		long: "Destroys the keys of the snapshot, and of all snapshots that have data of it, and deletes these snapshots. All of\n" +
			"them must be encrypted, and no sandbox may run from them. Archives, pushed artifacts and backups of the keys stay.",
		done: "shredded", call: (*client.Client).ShredSnapshot})
}

// familyVerb describes a command that changes a snapshot and all snapshots that contain its data.
type familyVerb struct {
	use, short, long string
	done             string // what has happened to the printed snapshots
	nothing          string // why there was nothing to do
	call             func(*client.Client, context.Context, string) (client.Family, error)
}

func newFamilyCmd(v familyVerb) *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use: v.use + " TAG", Short: v.short, Long: v.long, Example: "  forkd " + v.use + " customer-a",
		Args: usageArgs(arguments(1, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return show(cmd, &c, func(ctx context.Context, cl *client.Client) (client.Family, error) {
				return v.call(cl, ctx, args[0])
			}, func(f client.Family) error {
				for _, tag := range f.Tags {
					printLine(cmd.OutOrStdout(), tag+": "+v.done)
				}
				if len(f.Tags) == 0 {
					printf(cmd.ErrOrStderr(), "forkd: %s %s\n", args[0], v.nothing)
				}
				if len(f.InClear) > 0 {
					printf(cmd.ErrOrStderr(), "forkd: layers shared with these snapshots stay unencrypted: %s\n", strings.Join(f.InClear, ", "))
				}
				return nil
			})
		},
	}
	c.completeTags(cmd)
	c.register(cmd)
	return cmd
}
