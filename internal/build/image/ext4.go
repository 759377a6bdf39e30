package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/forkd/forkd/internal/proto/imageproto"
)

const (
	blockSize = 4096 // block size of the file system, in bytes: the guest's page size
	inodeSize = 256
	mib       = 1 << 20

	// bytesPerInode is small because interpreters and their packages consist of many small files.
	bytesPerInode = 8192

	maxAnswer = 1 << 20 // maximum size of forkd-unpack's answer, in bytes; real answers are shorter
)

// ext4Features are the features that mke2fs gets from forkd. They do not depend on the host's
// mke2fs.conf.
//
// There is no journal. The base is immutable, and a VM writes to a private top layer that is
// deleted with the VM. A snapshot freezes memory and disk at the same instant, so a journal would
// never be replayed. Without a journal, a boot skips the recovery thread, and a fork dirties fewer
// blocks and pages. A disadvantage is that e2fsck must check the disk of a killed VM before the
// disk is mounted without the VM's memory.
const ext4Features = "none,ext_attr,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink," +
	"extra_isize,metadata_csum"

// writeExt4 creates the file system image with the given path and size. It runs the given program,
// which is the executable forkd-unpack, to unpack the output of stream. The file system contains
// the unpacked files. Temporary files are put into the directory work, which must be empty and
// which the caller removes. The uuid identifies the file system and seeds its directory hashes.
func writeExt4(ctx context.Context, name, work, uuid string, size int64, program []byte,
	stream func(ctx context.Context, w io.Writer) error) error {
	unpack, root := filepath.Join(work, "forkd-unpack"), filepath.Join(work, "root")
	if err := os.WriteFile(unpack, program, 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	if err := runUnpack(ctx, asRoot(unpack, root, strconv.FormatInt(size, 10)), stream); err != nil {
		return err
	}
	err := run(ctx, nil, io.Discard, nil, asRoot("mke2fs", "-q", "-F", "-O", ext4Features,
		"-b", strconv.Itoa(blockSize), "-I", strconv.Itoa(inodeSize), "-i", strconv.Itoa(bytesPerInode), "-m", "0", "-U",
		uuid,
		// Write zeros to the inode tables now, or the kernel of every forked sandbox would write
		// them later, to the sandbox's top layer.
		"-E", "hash_seed="+uuid+",lazy_itable_init=0,root_owner=0:0", "-d", root, name,
		strconv.FormatInt(size/blockSize, 10))...)
	if err != nil && strings.Contains(err.Error(), "Could not allocate") {
		return fmt.Errorf("the content is larger than the disk: raise disk_mib (now %d): %w", size/mib, err)
	}
	if err != nil {
		return err
	}
	// mke2fs has written zeros into the inode tables. Turn these zeros into holes, which take no
	// space.
	return run(ctx, nil, io.Discard, nil, asRoot("fallocate", "--dig-holes", name)...)
}

// errUnpackEnded stops the sender of a stream that forkd-unpack no longer reads.
var errUnpackEnded = errors.New("forkd-unpack has ended")

// runUnpack runs forkd-unpack with the output of stream as its input. It returns when both the
// program and stream have ended.
func runUnpack(ctx context.Context, argv []string, stream func(ctx context.Context, w io.Writer) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	in, out := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		err := stream(ctx, out)
		out.CloseWithError(err) // nil becomes io.EOF
		sent <- err
	}()
	answer, err := output(ctx, in, maxAnswer, argv...)
	if err == nil {
		err = imageproto.ReadAnswer(bytes.NewReader(answer))
	}
	in.CloseWithError(errUnpackEnded)
	if err != nil {
		cancel(errUnpackEnded)
	}
	if failed := <-sent; failed != nil && !errors.Is(failed, errUnpackEnded) {
		return failed // forkd-unpack has received only a part of the stream
	}
	return err
}
