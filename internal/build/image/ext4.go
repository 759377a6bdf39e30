package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	blockSize = 4096 // of the file system: the guest's page size
	inodeSize = 256
	mib       = 1 << 20

	// bytesPerInode is small because interpreters and their packages consist of many small files.
	bytesPerInode = 8192
)

// ext4Features are the features passed to mke2fs, independent of the host's mke2fs.conf.
//
// There is no journal. The base is immutable, and a VM writes to a private top layer that is
// deleted with it. A snapshot freezes memory and disk at the same instant, so a journal would never
// be replayed. Without it a boot skips the recovery thread, and a fork dirties fewer blocks and
// pages. The price: the disk of a killed VM must not be mounted without its memory before e2fsck
// has checked it.
const ext4Features = "none,ext_attr,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink," +
	"extra_isize,metadata_csum"

// writeExt4 creates the file system image name of diskMiB. Its content is the archive that source
// writes, with the files of r on top. work is an empty directory for temporary files; the caller
// removes it. uuid identifies the file system and seeds its directory hashes.
func writeExt4(ctx context.Context, name, work, uuid string, r *Recipe,
	source func(ctx context.Context, w io.Writer) error) error {
	root := filepath.Join(work, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	size := int64(r.DiskMiB) * mib
	filter := &tarFilter{overlay: r.files, defaults: defaultFiles(), maxBytes: size, devices: keepDevices()}
	if r.User {
		filter.account = &account{files: map[string]overlayFile{}}
	}
	if err := extract(ctx, root, filter, source); err != nil {
		if errors.Is(err, errTooLarge) {
			return fmt.Errorf("%w: raise disk_mib (now %d)", err, r.DiskMiB)
		}
		return err
	}
	err := run(ctx, nil, io.Discard, nil, asRoot("mke2fs", "-q", "-F", "-O", ext4Features,
		"-b", strconv.Itoa(blockSize), "-I", strconv.Itoa(inodeSize), "-i", strconv.Itoa(bytesPerInode), "-m", "0", "-U",
		uuid,
		// Zero the inode tables now. Otherwise the kernel does it later, in every child and in the
		// child's top layer.
		"-E", "hash_seed="+uuid+",lazy_itable_init=0,root_owner=0:0", "-d", root, name,
		strconv.FormatInt(size/blockSize, 10))...)
	if err != nil && strings.Contains(err.Error(), "Could not allocate") {
		return fmt.Errorf("%w: raise disk_mib (now %d): %w", errTooLarge, r.DiskMiB, err)
	}
	if err != nil {
		return err
	}
	// mke2fs has written the zeros of the inode tables; as holes they take no space.
	if err := run(ctx, nil, io.Discard, nil, asRoot("fallocate", "--dig-holes", name)...); err != nil {
		return err
	}
	return removeTree(root)
}

// extract runs source → tarFilter → tar -x.
func extract(ctx context.Context, root string, f *tarFilter, source func(ctx context.Context,
	w io.Writer) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	fromSource, toFilter := io.Pipe()
	fromFilter, toTar := io.Pipe()

	sourced := make(chan error, 1)
	go func() {
		err := source(ctx, toFilter)
		toFilter.CloseWithError(err) // nil becomes io.EOF
		sourced <- err
	}()
	filtered := make(chan error, 1)
	go func() {
		f.out = tar.NewWriter(toTar)
		err := f.copy(fromSource)
		if err != nil {
			cancel(err) // stops the tools at both ends
		}
		// The archive is complete, but its source may still be busy: mmdebstrap removes its tree.
		// tar does not wait for that.
		toTar.CloseWithError(err)
		if err == nil {
			// Padding follows the end of the archive. Read it, or its writer fails.
			_, err = io.Copy(io.Discard, fromSource)
		}
		fromSource.CloseWithError(err)
		filtered <- err
	}()
	tarErr := run(ctx, fromFilter, io.Discard, nil, asRoot("tar", "--extract", "--numeric-owner", "--same-owner",
		"--same-permissions",
		"--delay-directory-restore", "--xattrs", "--xattrs-include=*", "--directory", root)...)
	fromFilter.CloseWithError(errors.Join(errors.New("tar has ended"), tarErr))
	filterErr, sourceErr := <-filtered, <-sourced
	return firstCause(filterErr, sourceErr, tarErr)
}

// firstCause picks the error that caused the others. If the source fails, the filter gets the same
// error when it reads. A failed filter stops source and tar. A failed tar stops the filter.
func firstCause(filterErr, sourceErr, tarErr error) error {
	switch {
	case sourceErr != nil && filterErr != nil && errors.Is(filterErr, sourceErr):
		return sourceErr
	case tarErr != nil && filterErr != nil && errors.Is(filterErr, tarErr):
		return tarErr
	case filterErr != nil:
		return filterErr
	case tarErr != nil:
		return tarErr
	}
	return sourceErr
}
