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

	// bytesPerInode is small: interpreters and their packages are many small files.
	bytesPerInode = 8192
)

// ext4Features is what mke2fs is told to use, whatever the host's mke2fs.conf says.
//
// There is no journal. The base is immutable and a VM writes to a private top that dies with it; a
// snapshot freezes memory and disk at one instant, so no journal would ever be replayed. Without it
// boots skip the recovery thread and a fork dirties fewer blocks and pages. The price: the disk of
// a VM that was killed must not be mounted alone, without its memory, before e2fsck has seen it.
const ext4Features = "none,ext_attr,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink," +
	"extra_isize,metadata_csum"

// writeExt4 makes the file system image name of diskMiB from the archive that source writes, with
// what r puts over it. work is an empty directory for temporary files, which the caller removes.
// uuid identifies the file system and seeds its directory hashes.
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
		// The inode tables are zeroed now: otherwise the kernel does it later, in every child, in
		// its top.
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
		toFilter.CloseWithError(err) // nil: end of file
		sourced <- err
	}()
	filtered := make(chan error, 1)
	go func() {
		f.out = tar.NewWriter(toTar)
		err := f.copy(fromSource)
		if err != nil {
			cancel(err) // stops the tools at both ends
		}
		// The archive is complete, but its source may have a lot to do yet: mmdebstrap removes its
		// tree. tar does not wait.
		toTar.CloseWithError(err)
		if err == nil {
			// Padding follows the end of the archive. Its writer fails if nobody reads it.
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

// firstCause picks the error that the others follow from. The source fails by itself (then the
// filter sees the same error when reading); a failed filter stops source and tar; a failed tar
// stops the filter.
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
