package cli

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	v1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/atomicfile"
)

func newPackCmd() *cobra.Command {
	var c common
	var oldTag, out string
	cmd := &cobra.Command{
		Use:   "pack TAG FILE",
		Short: "Pack a snapshot into an archive for another host",
		Long: "Writes all files of a snapshot to FILE, or to standard output if FILE is -: memory, disk, base image and\n" +
			"kernel. The archive has no network policy, limits, labels or secrets of forkd; but it has everything that\n" +
			"the guest had in its memory and on its disk, and what earlier snapshots of its line had there. A copy by\n" +
			"'forkd snapshot-compact' has only the present data. The archive is an OCI image layout, which programs\n" +
			"such as skopeo can copy.",
		Example: "  forkd pack python-numpy python-numpy.tar\n  forkd pack python-numpy - | ssh other forkd unpack - --trust off",
		Args:    usageArgs(arguments(0, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if out != "" {
				args = append(args, out)
			}
			args, err := withTag(cmd, args, oldTag)
			if err != nil {
				return err
			}
			tag, file := args[0], args[1]
			if c.streams = file == "-"; c.streams && c.json() {
				return errNoJSON
			}
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				if file == "-" {
					_, err := packTo(ctx, cl, tag, cmd.OutOrStdout())
					return err
				}
				var n int64
				err := atomicfile.Fill(file, func(tmp string) (err error) {
					f, err := createNew(tmp, 0o600) // other users must not read a guest's memory
					if err != nil {
						return err
					}
					n, err = packTo(ctx, cl, tag, f)
					return errors.Join(err, f.Close())
				})
				if err != nil {
					return err
				}
				if c.json() {
					return writeJSON(cmd.OutOrStdout(), map[string]any{"tag": tag, "file": file, "bytes": n})
				}
				printf(cmd.ErrOrStderr(), "forkd: packed %s into %s: %d MiB\n", tag, file, n>>20)
				return nil
			})
		},
	}
	registerOldTag(cmd, &oldTag)
	cmd.Flags().StringVar(&out, "out", "", "of forkd 0.5: FILE")
	_ = cmd.Flags().MarkHidden("out") // fails only for a flag that does not exist
	c.completeTags(cmd)
	c.register(cmd)
	return cmd
}

// registerOldTag adds the flag that forkd 0.5 has instead of the argument TAG.
func registerOldTag(cmd *cobra.Command, tag *string) {
	cmd.Flags().StringVar(tag, "tag", "", "of forkd 0.5: TAG")
	_ = cmd.Flags().MarkHidden("tag") // fails only for a flag that does not exist
}

// withTag puts the value of registerOldTag's flag, if it is set, before the arguments of a command.
// If the result does not have two arguments, withTag returns an error.
func withTag(cmd *cobra.Command, args []string, tag string) ([]string, error) {
	if tag != "" {
		args = append([]string{tag}, args...)
	}
	return args, usageArgs(arguments(2, 2))(cmd, args)
}

func packTo(ctx context.Context, cl *client.Client, tag string, w io.Writer) (int64, error) {
	r, err := cl.PackSnapshot(ctx, tag)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	return io.Copy(w, r)
}

func newUnpackCmd() *cobra.Command {
	var c common
	var opts client.UnpackOptions
	var signature string
	cmd := &cobra.Command{
		Use:   "unpack FILE",
		Short: "Make a snapshot from an archive of another host",
		Long: "Reads an archive that 'forkd pack' has written, from FILE or, if FILE is -, from standard input, and prints the\n" +
			"tag of the new snapshot. A key that the daemon trusts must have signed the archive with 'forkd sign --archive',\n" +
			"unless the daemon's --trust says otherwise. The daemon compares every byte with its digest. The snapshot gets\n" +
			"the daemon's default network policy and limits, and every client of the daemon may fork it.",
		Example: "  forkd unpack python-numpy.tar\n  forkd unpack python-numpy.tar --tag numpy-2 --trust off",
		Args:    usageArgs(arguments(1, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			in := cmd.InOrStdin()
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer f.Close()
				in = f
			}
			var err error
			if opts.Signature, err = signatureOf(args[0], signature); err != nil {
				return err
			}
			return show(cmd, &c, func(ctx context.Context, cl *client.Client) (client.HubResult, error) {
				return cl.UnpackSnapshot(ctx, in, opts, nil)
			}, showMoved(cmd, "unpacked"))
		},
	}
	cmd.Flags().StringVar(&opts.Tag, "tag", "", "tag of the snapshot (default that of the packed one)")
	cmd.Flags().StringVar(&signature, "signature", "", "file of the signature (default FILE"+bundleSuffix+" if it exists)")
	registerTrust(cmd, &opts.Trust)
	c.register(cmd)
	return cmd
}

// signatureOf returns the signature of an archive, from the given file or from the file that 'forkd
// sign --archive' has written. The result is empty if there is none.
func signatureOf(archive, file string) ([]byte, error) {
	isGiven := file != ""
	if !isGiven {
		if archive == "-" {
			return nil, nil
		}
		file = archive + bundleSuffix
	}
	p, err := readShort(file, v1.MaxUnpackSignature)
	if errors.Is(err, fs.ErrNotExist) && !isGiven {
		return nil, nil
	}
	return p, err
}

func registerTrust(cmd *cobra.Command, trust *string) {
	cmd.Flags().StringVar(trust, "trust", "",
		"what happens without a signature by a trusted key: require (the snapshot is refused), warn, or off, if you\n"+
			"know the source of the snapshot: its programs run in each fork (default the daemon's policy)")
	completeWords(cmd, "trust", "require", "warn", "off")
}

// showTrust prints what is known about the signatures of a new snapshot.
func showTrust(cmd *cobra.Command, r client.HubResult) {
	if r.SignedBy != "" {
		printf(cmd.ErrOrStderr(), "forkd: signed by %s\n", r.SignedBy)
	}
	if r.TrustProblem != "" {
		printf(cmd.ErrOrStderr(), "forkd: warning: not trusted: %s\n", r.TrustProblem)
	}
}

// showMoved returns a function that prints a new snapshot.
func showMoved(cmd *cobra.Command, done string) func(client.HubResult) error {
	return func(r client.HubResult) error {
		if r.Snapshot != nil {
			printLine(cmd.OutOrStdout(), r.Snapshot.Tag)
		}
		showTrust(cmd, r)
		printf(cmd.ErrOrStderr(), "forkd: %s %d MiB in %.1f s: %s\n", done, r.Bytes>>20, r.MS/1000, r.Digest)
		return nil
	}
}
