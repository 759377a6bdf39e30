package cli

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	oci "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/sigstore"
)

// bundleSuffix is the end of the name of an archive's signature.
const bundleSuffix = ".sigstore.json"

func newSignCmd() *cobra.Command {
	var c common
	var o registryOptions
	var keyFile, archive string
	cmd := &cobra.Command{
		Use:   "sign REGISTRY/NAME@DIGEST",
		Short: "Sign a snapshot in a registry or in an archive",
		Long: "Signs the digest of a snapshot, and adds the signature to the registry. 'forkd push' prints the reference with the\n" +
			"digest. Sign this reference, because a registry can move a tag. HOST:PORT/TAG@DIGEST is a snapshot of a daemon, whose\n" +
			"digest 'forkd pull HOST:PORT/TAG:latest --inspect' prints. With --archive FILE, the signature of an archive of\n" +
			"'forkd pack' goes to FILE" + bundleSuffix + ", and no daemon is needed. Signatures are sigstore bundles, which\n" +
			"'cosign verify --key FILE --insecure-ignore-tlog' reads too. The private key does not leave this program.",
		Example: "  forkd sign $(forkd push python-numpy ghcr.io/owner/python-numpy:1) --key forkd.key\n" +
			"  forkd sign --archive python-numpy.tar --key forkd.key",
		Args: usageArgs(arguments(0, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case keyFile == "":
				return usageError{errors.New("--key is missing: 'forkd key generate' makes one")}
			case (len(args) == 1) == (archive != ""):
				return usageError{errors.New("give either REGISTRY/NAME@DIGEST or --archive FILE")}
			case archive != "":
				return signArchive(cmd, &c, archive, keyFile)
			}
			auths, err := registryAuth(cmd.Context(), o.auth)
			if err != nil {
				return err
			}
			key, err := readPrivateKey(cmd, keyFile)
			if err != nil {
				return err
			}
			return show(cmd, &c, func(ctx context.Context, cl *client.Client) (s client.Signature, err error) {
				found, err := cl.FindSnapshot(ctx, client.FindRequest{Reference: args[0], RegistryAuth: auths})
				if err != nil {
					return s, err
				}
				if _, want, ok := strings.Cut(args[0], "@"); ok && found.Digest != want {
					return s, fmt.Errorf("%s: the daemon has found the digest %s", args[0], found.Digest)
				}
				bundle, err := sigstore.Sign(key, found.Digest)
				if err != nil {
					return s, err
				}
				return cl.SignSnapshot(ctx, client.SignRequest{Reference: found.Reference, Bundle: string(bundle),
					RegistryAuth: auths})
			}, func(s client.Signature) error {
				printLine(cmd.OutOrStdout(), s.Reference)
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&keyFile, "key", "", "file of the private key, of 'forkd key generate' or cosign")
	cmd.Flags().StringVar(&archive, "archive", "", "archive of 'forkd pack' to sign")
	o.registerAuth(cmd)
	c.register(cmd)
	return cmd
}

// signArchive writes the signature of an archive to a file next to the archive.
func signArchive(cmd *cobra.Command, c *common, archive, keyFile string) error {
	digest, err := digestOfArchive(archive)
	if err != nil {
		return fmt.Errorf("%s: %w", archive, err)
	}
	key, err := readPrivateKey(cmd, keyFile)
	if err != nil {
		return err
	}
	bundle, err := sigstore.Sign(key, digest)
	if err != nil {
		return err
	}
	if err := writeNew(archive+bundleSuffix, bundle, 0o644); err != nil {
		return err
	}
	if c.json() {
		return writeJSON(cmd.OutOrStdout(), map[string]any{"signature": archive + bundleSuffix, "digest": digest})
	}
	printLine(cmd.OutOrStdout(), archive+bundleSuffix)
	return nil
}

// maxLayoutIndex bounds the index of an archive, in bytes.
const maxLayoutIndex = 1 << 20

// digestOfArchive returns the digest of the only manifest in an OCI image layout. The daemon that
// unpacks the archive compares the content with this digest.
func digestOfArchive(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	for in := tar.NewReader(f); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return "", fmt.Errorf("it has no %s: it is no archive of 'forkd pack'", oci.ImageIndexFile)
		}
		if err != nil {
			return "", err
		}
		if path.Clean(h.Name) != oci.ImageIndexFile || h.Typeflag != tar.TypeReg {
			continue
		}
		var x oci.Index
		if err := json.NewDecoder(io.LimitReader(in, maxLayoutIndex)).Decode(&x); err != nil {
			return "", fmt.Errorf("%s: %w", oci.ImageIndexFile, err)
		}
		if len(x.Manifests) != 1 {
			return "", fmt.Errorf("%s has %d manifests: want 1", oci.ImageIndexFile, len(x.Manifests))
		}
		return x.Manifests[0].Digest.String(), nil
	}
}

// verifySignature prints the key that has signed a snapshot in a registry.
func verifySignature(cmd *cobra.Command, c *common, o *registryOptions, reference, keyFile string) error {
	auths, err := registryAuth(cmd.Context(), o.auth)
	if err != nil {
		return err
	}
	req := client.SignatureRequest{Reference: reference, RegistryAuth: auths}
	if keyFile != "" {
		text, err := readShort(keyFile, sigstore.MaxKey)
		if err != nil {
			return err
		}
		if strings.Contains(string(text), "PRIVATE KEY") {
			return fmt.Errorf("%s is a private key: give the public key", keyFile)
		}
		req.Key = string(text)
	}
	return show(cmd, c, func(ctx context.Context, cl *client.Client) (client.Signature, error) {
		return cl.VerifySignature(ctx, req)
	}, func(s client.Signature) error {
		printLine(cmd.OutOrStdout(), s.Reference)
		printf(cmd.ErrOrStderr(), "forkd: signed with the key %s\n", strings.TrimSpace(s.SignedBy+" "+s.KeyDigest))
		return nil
	})
}
