package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Step is a progress report of a build or a kernel download.
type Step struct {
	Stage  string // a short fixed phrase such as "install packages"
	Detail string // current output of the tool; may be empty
}

// The stages, in their order. If the result is cached, no stage is reported.
const (
	StageWait    = "wait for another build"
	StageResolve = "resolve the base image"
	StageContent = "collect files"

	StageUnpackImage = "unpack the image in a VM"
	StageFS          = "write the file system"
	StageDigest      = "compute the digest"
	StageDownload    = "download the kernel"
	StageUnpack      = "unpack the kernel"
)

// reporter wraps a progress function, which may be nil.
type reporter func(Step)

func (p reporter) step(stage, detail string) {
	if p != nil {
		p(Step{stage, detail})
	}
}

// content is a resolved base. Its digest is the part of the cache key that is not in the recipe's
// text. stream(ctx, w) writes the layers of the base, and the recipe's files, as a stream of
// package imageproto.
type content struct {
	digest  string
	env     map[string]string
	stream  func(ctx context.Context, w io.Writer) error
	trusted bool // this host made the content, so it may unpack the content without a VM
}

// Disk describes a disk that a VM is to fill.
type Disk struct {
	Path   string // file of the disk; it does not exist yet
	MiB    int
	UUID   [16]byte // UUID of the file system
	Stream func(ctx context.Context, w io.Writer) error
}

// Unpacker unpacks bases.
type Unpacker struct {
	// Fill lets a VM fill a disk with a container image. The daemon starts such a VM itself; other
	// programs send the request to the daemon. nil: container images cannot be built.
	Fill func(ctx context.Context, d Disk) error
	// Program is the executable forkd-unpack, which unpacks a Debian base on this host. nil: Debian
	// bases cannot be built.
	Program []byte
}

// Build returns the image of r. It builds the image if the cache does not have it. The function
// progress may be nil. Several goroutines may call Build at the same time.
//
// The error is a *MissingError (wrapped) if the host lacks tools or rights. In this case nothing
// was changed.
func Build(ctx context.Context, cacheDir string, r *Recipe, u Unpacker, progress func(Step)) (*Image, error) {
	img, err := build(ctx, cacheDir, r, u, progress)
	if err != nil {
		return nil, fmt.Errorf("build image %s: %w", r.Name, err)
	}
	return img, nil
}

func build(ctx context.Context, cacheDir string, r *Recipe, u Unpacker, report reporter) (*Image, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	c, err := resolve(ctx, r, report)
	if err != nil {
		return nil, err
	}
	key := cacheKey(r, c.digest)
	err = publish(ctx, imagesDir(cacheDir), key, func() { report.step(StageWait, "") }, func(staging string) error {
		return fill(ctx, staging, key, r, c, u, report)
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
	if b.kind != baseDebian {
		report.step(StageResolve, r.Base)
		return resolveContainer(ctx, b, r)
	}
	line := func(line string) {
		if detail, ok := strings.CutPrefix(line, "I: "); ok && !strings.HasPrefix(detail, "running --") {
			report.step(StageContent, detail)
		}
	}
	return &content{trusted: true, stream: func(ctx context.Context, w io.Writer) error {
		return writeStream(ctx, w, r, source{name: r.Base, open: func() (io.ReadCloser, error) {
			return openDebian(ctx, b.arg, r.Packages, line), nil
		}})
	}}, nil
}

// fill builds the image in the directory staging.
func fill(ctx context.Context, staging, key string, r *Recipe, c *content, u Unpacker, report reporter) error {
	rootfs := filepath.Join(staging, rootfsName)
	manifest := Manifest{
		FormatVersion: FormatVersion, Key: key, RootfsSize: int64(r.DiskMiB) * mib,
		Created: time.Now().UTC().Truncate(time.Second), Recipe: r.Name,
		Base: r.Base, BaseDigest: c.digest, Packages: r.Packages, Env: c.env,
	}
	if _, err := manifest.text(); err != nil { // check this before the work begins
		return err
	}
	stream := func(ctx context.Context, w io.Writer) error {
		err := c.stream(ctx, w)
		report.step(StageFS, "")
		return err
	}
	var err error
	switch {
	case c.trusted:
		report.step(StageContent, r.Base)
		err = unpackHere(ctx, staging, rootfs, key, r, u.Program, stream)
	case u.Fill == nil:
		err = errors.New("container images are unpacked in a VM: start a daemon")
	default:
		report.step(StageUnpackImage, r.Base)
		err = u.Fill(ctx, Disk{Path: rootfs, MiB: r.DiskMiB, UUID: uuidBytes(key), Stream: stream})
	}
	if err != nil {
		return err
	}
	if err := os.Chmod(rootfs, 0o444); err != nil {
		return err
	}
	report.step(StageDigest, "")
	if manifest.RootfsSHA256, err = fileSHA256(ctx, rootfs); err != nil {
		return err
	}
	text, err := manifest.text()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(staging, manifestName), text, 0o444)
}

// text returns the content of image.json. It returns an error if Open would refuse this content.
func (m *Manifest) text() ([]byte, error) {
	text, err := json.MarshalIndent(m, "", "  ")
	if spare := sha256.Size * 2; err == nil && len(text)+spare > maxManifestBytes { // a digest is added later
		err = fmt.Errorf("%s would have %d bytes, at most %d are read: the image's environment is too large", manifestName,
			len(text), maxManifestBytes-spare)
	}
	return append(text, '\n'), err
}

// unpackHere makes the file system of a Debian base with tools of the host.
func unpackHere(ctx context.Context, staging, rootfs, key string, r *Recipe, program []byte,
	stream func(ctx context.Context, w io.Writer) error) error {
	if program == nil {
		return errors.New("forkd-unpack is missing: only container images can be built here")
	}
	if err := require(toolMke2fs, toolFallocate, toolAptGet, toolMmdebstrap); err != nil {
		return err
	}
	if err := requireOwners(ctx); err != nil {
		return err
	}
	work := filepath.Join(staging, "work")
	if err := os.Mkdir(work, 0o700); err != nil {
		return err
	}
	if err := writeExt4(ctx, rootfs, work, uuidOf(key), int64(r.DiskMiB)*mib, program, stream); err != nil {
		return err
	}
	return removeTree(work)
}

// cacheKey returns a digest over everything that determines an image's file system, and nothing
// else. Recipes that differ only in the warm-up or the VM size share an image. The digest of a
// container image covers its environment. Increase buildVersion when this package builds images
// differently.
func cacheKey(r *Recipe, baseDigest string) string {
	const buildVersion = 3
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
		put("account", "user")
	}
	for _, f := range r.files {
		put(f.name, string(f.typ), fmt.Sprintf("%o", f.mode), string(f.data), f.link)
	}
	return hex.EncodeToString(h.Sum(nil))[:32]
}

// uuidBytes derives a file system's UUID from an image's key: version 8, RFC 9562 §5.8.
func uuidBytes(key string) (id [16]byte) {
	_, _ = hex.Decode(id[:], []byte(key)) // a key is 32 hexadecimal digits
	id[6], id[8] = id[6]&0xf|0x80, id[8]&0xf|0x80
	return id
}

// uuidOf returns the result of uuidBytes as text.
func uuidOf(key string) string {
	b := uuidBytes(key)
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
