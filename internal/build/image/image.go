// Package image creates the files that a parent VM boots from, and keeps them in the cache: root
// file systems made from recipes, and guest kernels with their initramfs.
//
//	<cache>/images/<key>/rootfs.ext4, image.json      Build; the key is a digest over all that the file system depends on
//	<cache>/kernel/<version>/vmlinuz, vmlinux, ...    Kernel, UserKernel
//
// Each of these directories appears in one step: it is created as a staging directory, synced and
// renamed. Concurrent builds of the same thing wait for each other, and a failed build leaves
// nothing behind. Images are immutable, because VMs write to block layers above them.
//
// The package runs the distribution's own tools (apt-get, mmdebstrap, dpkg-deb, mke2fs) with the
// host's apt settings. The caller supplies the VM that unpacks container images. The package boots
// nothing itself, installs no packages on the host and does not ask for privileges. Without root it
// uses user namespaces. If these are unavailable, the error names the requirement.
package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// FormatVersion is the version of image.json and of the layout around it.
const FormatVersion = 2

// Names inside an image's directory.
const (
	rootfsName   = "rootfs.ext4"
	manifestName = "image.json"
)

// maxManifestBytes is the maximum size of image.json.
const maxManifestBytes = 4 << 20

// Manifest is image.json. Sizes are in bytes unless the name says otherwise.
type Manifest struct {
	FormatVersion int               `json:"format_version"`
	Key           string            `json:"key"`
	RootfsSHA256  string            `json:"rootfs_sha256"`
	RootfsSize    int64             `json:"rootfs_size"`
	Created       time.Time         `json:"created"`
	Recipe        string            `json:"recipe"` // name of the recipe that the image was first built for
	Base          string            `json:"base"`
	BaseDigest    string            `json:"base_digest,omitempty"` // container images: digest that the base resolved to
	Packages      []string          `json:"packages,omitempty"`
	Env           map[string]string `json:"env,omitempty"` // environment from the configuration of a container image
}

// Image is a finished image in the cache.
type Image struct {
	Manifest
	Dir string
}

// Rootfs returns the path of the ext4 file system: no journal, 4 KiB blocks, read-only.
func (i *Image) Rootfs() string { return filepath.Join(i.Dir, rootfsName) }

// InvalidError means that a directory is not a usable image, because it is damaged, has another
// version, or has other content.
type InvalidError struct {
	Dir    string
	Reason string
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("image %s: %s; remove it and build it again", e.Dir, e.Reason)
}

var keyPattern = regexp.MustCompile(`^[0-9a-f]{32}$`)

// Open reads the image in dir and checks it, except for the content of the file system (see
// Verify). The error is an *InvalidError, or fs.ErrNotExist if there is no such directory.
func Open(dir string) (*Image, error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("open image: %w", err)
	}
	invalid := func(format string, args ...any) (*Image, error) {
		return nil, &InvalidError{Dir: dir, Reason: fmt.Sprintf(format, args...)}
	}
	text, err := readBounded(os.DirFS(dir), manifestName, maxManifestBytes)
	if err != nil {
		return invalid("no readable %s: %v", manifestName, err)
	}
	var m Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return invalid("%s: %v", manifestName, err)
	}
	if m.FormatVersion != FormatVersion {
		return invalid("format version %d, this forkd reads %d", m.FormatVersion, FormatVersion)
	}
	if !keyPattern.MatchString(m.Key) || filepath.Base(dir) != m.Key {
		return invalid("%s is for key %q, not for this directory", manifestName, m.Key)
	}
	img := &Image{Manifest: m, Dir: dir}
	info, err := os.Lstat(img.Rootfs())
	if err != nil {
		return invalid("no %s: %v", rootfsName, err)
	}
	if !info.Mode().IsRegular() {
		return invalid("%s is not a regular file", rootfsName)
	}
	if info.Size() != m.RootfsSize {
		return invalid("%s has %d bytes, %s says %d", rootfsName, info.Size(), manifestName, m.RootfsSize)
	}
	if err := checkExt4(img.Rootfs(), m.RootfsSize); err != nil {
		return invalid("%s: %v", rootfsName, err)
	}
	return img, nil
}

// Verify reads the whole file system and compares it with the digest in the manifest. The error is
// an *InvalidError if they differ.
func (i *Image) Verify(ctx context.Context) error {
	sum, err := fileSHA256(ctx, i.Rootfs())
	if err != nil {
		return fmt.Errorf("verify image %s: %w", i.Dir, err)
	}
	if sum != i.RootfsSHA256 {
		return &InvalidError{Dir: i.Dir, Reason: fmt.Sprintf("%s has digest %s, %s says %s", rootfsName, sum, manifestName,
			i.RootfsSHA256)}
	}
	return nil
}

func imagesDir(cacheDir string) string { return filepath.Join(cacheDir, "images") }

// checkExt4 compares the superblock with the file's size (Linux
// Documentation/filesystems/ext4/super.rst).
func checkExt4(name string, size int64) error {
	const (
		superblockOffset = 1024
		magicOffset      = 0x38
		magic            = 0xEF53
	)
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	var sb [magicOffset + 2]byte
	if _, err := f.ReadAt(sb[:], superblockOffset); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	le16 := func(off int) int64 { return int64(sb[off]) | int64(sb[off+1])<<8 }
	if le16(magicOffset) != magic {
		return errors.New("not an ext4 file system")
	}
	blocks := le16(4) | le16(6)<<16 // s_blocks_count_lo; the low half suffices: no recipe may have a disk of 16 TiB
	if blocks*blockSize != size {
		return fmt.Errorf("file system of %d bytes in a file of %d", blocks*blockSize, size)
	}
	return nil
}
