package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Step is a progress report of a build or a kernel download.
type Step struct {
	Stage  string // a short fixed phrase such as "install packages"
	Detail string // current output of the tool; may be empty
}

// The stages, in their order. A cached result reports none of them.
const (
	StageWait     = "wait for another build"
	StageResolve  = "resolve the base image"
	StageContent  = "collect files"
	StageFS       = "write the file system"
	StageDigest   = "compute the digest"
	StageDownload = "download the kernel"
	StageUnpack   = "unpack the kernel"
)

// reporter wraps a progress function, which may be nil.
type reporter func(Step)

func (p reporter) step(stage, detail string) {
	if p != nil {
		p(Step{stage, detail})
	}
}

// content is a resolved base: a function that writes an archive, and the part of the key that is
// not in the recipe's text.
type content struct {
	digest string
	env    map[string]string
	write  func(ctx context.Context, w io.Writer) error
}

// Build returns the image of r. It builds the image if the cache does not have it. progress may be
// nil. It is called from the building goroutines, possibly concurrently.
//
// The error is a *MissingError (wrapped) if the host lacks tools or rights. In this case nothing
// was changed.
func Build(ctx context.Context, cacheDir string, r *Recipe, progress func(Step)) (*Image, error) {
	img, err := build(ctx, cacheDir, r, progress)
	if err != nil {
		return nil, fmt.Errorf("build image %s: %w", r.Name, err)
	}
	return img, nil
}

func build(ctx context.Context, cacheDir string, r *Recipe, report reporter) (*Image, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	c, err := resolve(ctx, r, report)
	if err != nil {
		return nil, err
	}
	key := cacheKey(r, c.digest)
	err = publish(ctx, imagesDir(cacheDir), key, func() { report.step(StageWait, "") }, func(staging string) error {
		return fill(ctx, staging, key, r, c, report)
	})
	if err != nil {
		return nil, err
	}
	used(filepath.Join(imagesDir(cacheDir), key))
	return Open(filepath.Join(imagesDir(cacheDir), key))
}

func resolve(ctx context.Context, r *Recipe, report reporter) (*content, error) {
	b, err := parseBase(r.Base)
	if err != nil {
		return nil, err
	}
	if b.kind == baseDebian {
		return &content{write: func(ctx context.Context, w io.Writer) error {
			return debianSource(ctx, w, b.arg, r.Packages, func(line string) {
				if detail, ok := strings.CutPrefix(line, "I: "); ok && !strings.HasPrefix(detail, "running --") {
					report.step(StageContent, detail)
				}
			})
		}}, nil
	}
	report.step(StageResolve, r.Base)
	return resolveContainer(ctx, b, r.dir, r.Login)
}

// fill builds the image in staging.
func fill(ctx context.Context, staging, key string, r *Recipe, c *content, report reporter) error {
	if err := requireFor(ctx, r); err != nil {
		return err
	}
	report.step(StageContent, r.Base)
	work := filepath.Join(staging, "work")
	if err := os.Mkdir(work, 0o700); err != nil {
		return err
	}
	rootfs := filepath.Join(staging, rootfsName)
	source := func(ctx context.Context, w io.Writer) error {
		err := c.write(ctx, w)
		report.step(StageFS, "")
		return err
	}
	if err := writeExt4(ctx, rootfs, work, uuidOf(key), r, source); err != nil {
		return err
	}
	if err := removeTree(work); err != nil {
		return err
	}
	if err := os.Chmod(rootfs, 0o444); err != nil {
		return err
	}
	report.step(StageDigest, "")
	sum, err := fileSHA256(rootfs)
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(Manifest{
		FormatVersion: FormatVersion, Key: key, RootfsSHA256: sum, RootfsSize: int64(r.DiskMiB) * mib,
		Created: time.Now().UTC().Truncate(time.Second), Recipe: r.Name,
		Base: r.Base, BaseDigest: c.digest, Packages: r.Packages, Env: c.env,
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(staging, manifestName), append(text, '\n'), 0o444)
}

// requireFor returns a *MissingError if this host cannot build r.
func requireFor(ctx context.Context, r *Recipe) error {
	tools := []tool{toolMke2fs, toolTar, toolFallocate}
	if strings.HasPrefix(r.Base, baseDebian+":") {
		tools = append(tools, toolAptGet, toolMmdebstrap)
	}
	if err := require(tools...); err != nil {
		return err
	}
	return requireOwners(ctx)
}

// cacheKey returns a digest over everything that determines an image's file system, and nothing
// else. A recipe with another warm-up or VM size uses the same image. The digest of a container
// image covers its environment. buildVersion is raised when this package builds images differently.
func cacheKey(r *Recipe, baseDigest string) string {
	const buildVersion = 2
	h := sha256.New()
	// Each string is written with its length, so that different inputs never hash the same bytes.
	put := func(parts ...string) {
		fmt.Fprintf(h, "%d\n", len(parts))
		for _, s := range parts {
			fmt.Fprintf(h, "%d:%s", len(s), s)
		}
	}
	put(fmt.Sprintf("forkd image %d.%d", FormatVersion, buildVersion))
	put(r.Base, baseDigest, ext4Features, fmt.Sprint(r.DiskMiB))
	put(dpkgExcludes()...)
	put(r.Packages...)
	if r.User {
		put("account", accountName)
	}
	for _, f := range slices.Concat(defaultFiles(), r.files) {
		put(f.name, string(f.typ), fmt.Sprintf("%o", f.mode), string(f.data), f.link)
	}
	return hex.EncodeToString(h.Sum(nil))[:32]
}

// uuidOf derives a file system's UUID from an image's key: version 8, RFC 9562 §5.8.
func uuidOf(key string) string {
	b := []byte(key[:32])
	b[12], b[16] = '8', '8'
	return fmt.Sprintf("%s-%s-%s-%s-%s", b[:8], b[8:12], b[12:16], b[16:20], b[20:])
}
