package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/build/image"
)

// newParentCmd makes forkd 0.5's command for a parent's image.
func newParentCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "parent", Short: "Build a parent; see build", Hidden: true,
		Args: usageArgs(knownCommand), RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(newParentBuildCmd())
	return cmd
}

// newParentBuildCmd makes the command `parent build`. It makes a snapshot or, with -o FILE as in
// forkd 0.5, a root file system.
func newParentBuildCmd() *cobra.Command {
	c := common{streams: true}
	var o buildOptions
	var from imageOf05
	cmd := &cobra.Command{
		Use:   "build IMAGE [-o FILE.ext4 | --tag TAG]",
		Short: "Make a snapshot, or a root file system, of a container image; see build",
		Long: "Without -o the same as 'forkd build docker://IMAGE --tag TAG'. With -o, as in forkd 0.5, it only writes the\n" +
			"image's root file system to FILE, for 'forkd snapshot --rootfs FILE'.",
		Args: usageArgs(arguments(1, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := from.recipe(args[0])
			if err != nil {
				return err
			}
			o.tag, o.live = cmp.Or(o.tag, r.Name), canRedraw(cmd.ErrOrStderr())
			if c.output == "text" || c.json() {
				return buildAndPrint(cmd, &c, r, o)
			}
			file := c.output
			c.output = "text"
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				return writeRootfs(ctx, cmd, cl, r, file)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.tag, "tag", "", "the snapshot's tag (default the name of the image)")
	from.flags(f)
	c.register(cmd)
	f.Lookup("output").Usage = "text or json, or the file for the root file system"
	return cmd
}

// writeRootfs makes the root file system of an image and copies it to a file.
func writeRootfs(ctx context.Context, cmd *cobra.Command, cl *client.Client, r *image.Recipe, name string) error {
	if _, err := os.Lstat(name); err == nil {
		return fmt.Errorf("-o %s: it exists: remove it, or choose another name", name)
	}
	st := newStatus(cmd.ErrOrStderr())
	img, _, err := buildFiles(ctx, cl, r, "", st)
	st.end()
	if err != nil {
		return err
	}
	if err := copySparse(name, img.Rootfs()); err != nil {
		return err
	}
	printf(cmd.OutOrStdout(), "%s\n", name)
	printf(cmd.ErrOrStderr(), "forkd: next: forkd snapshot --tag %s --rootfs %s --kernel KERNEL; 'forkd build docker://IMAGE' "+
		"does all of it\n", r.Name, name)
	return nil
}

// copySparse copies a file. Blocks of zeros are holes in the copy. After an error it leaves no copy.
func copySparse(to, from string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, out.Close()); err != nil {
			err = errors.Join(err, os.Remove(to))
		}
	}()
	buf, zeros := make([]byte, 64<<10), make([]byte, 64<<10)
	for at := int64(0); ; {
		n, err := io.ReadFull(in, buf)
		if n > 0 && !bytes.Equal(buf[:n], zeros[:n]) {
			if _, err := out.WriteAt(buf[:n], at); err != nil {
				return err
			}
		}
		at += int64(n)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return out.Truncate(at)
		case err != nil:
			return err
		}
	}
}
