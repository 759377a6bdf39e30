package vault

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/crypt"
	"github.com/forkd/forkd/internal/host/fileid"
	"github.com/forkd/forkd/internal/host/sparse"
)

// Encrypt writes the encrypted form of the file src to dst. Holes of src take no space. The name
// identifies the file, see crypt.Header.
func Encrypt(ctx context.Context, dst io.Writer, src *os.File, keyID string, key *crypt.Key, name string) error {
	st, err := src.Stat()
	if err != nil {
		return err
	}
	all := sparse.Part{End: st.Size()}
	h := crypt.Header{KeyID: keyID, Name: name, Bytes: uint64(st.Size())}
	err = sparse.EachData(src, all, func(p sparse.Part) error {
		h.Data += uint64(p.End - p.Start)
		return nil
	})
	if err != nil {
		return err
	}
	out, err := crypt.NewWriter(dst, key, h)
	if err != nil {
		return err
	}
	buffer := make([]byte, 1<<20)
	err = sparse.EachData(src, all, func(p sparse.Part) error {
		for at := p.Start; at < p.End; {
			n, err := src.ReadAt(buffer[:min(p.End-at, int64(len(buffer)))], at)
			if err != nil && !errors.Is(err, io.EOF) || n == 0 {
				return errors.Join(err, ctx.Err())
			}
			if err := errors.Join(out.Write(uint64(at), buffer[:n]), ctx.Err()); err != nil {
				return err
			}
			at += int64(n)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return out.Close()
}

// Seal makes encrypted files with a key of their own.
type Seal struct {
	KeyID string
	key   crypt.Key
}

// CanSeal returns an error if it is already known that Seal would fail. It does not run the program
// of --kms-command. Seal fails if nothing wraps keys, or if v is nil. It also fails if the
// directory for decrypted files is not on a RAM file system, because callers write the files there
// before they encrypt them.
func (v *Vault) CanSeal() error {
	if v == nil || v.cfg.KeyFile == "" && len(v.cfg.Command) == 0 {
		return errNoSecret
	}
	return v.checkRAM()
}

// Seal makes a key, as New does, if CanSeal returns no error.
func (v *Vault) Seal(ctx context.Context) (*Seal, error) {
	if err := v.CanSeal(); err != nil {
		return nil, err
	}
	id, key, err := v.New(ctx)
	if err != nil {
		return nil, err
	}
	return &Seal{id, key}, nil
}

// Encrypt writes the encrypted form of src to a new file, and syncs the file. The file's path is
// the given path followed by crypt.Suffix. The file may take the given number of bytes on the file
// system. The given name identifies the file.
func (s *Seal) Encrypt(path string, src *os.File, name string, room uint64) error {
	if need := fileid.BlocksOf(src); need > room {
		return fmt.Errorf("%s of %d MiB, %d MiB are left: %w", filepath.Base(path), need>>20, room>>20, unix.ENOSPC)
	}
	dst, err := os.OpenFile(path+crypt.Suffix, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(Encrypt(context.Background(), dst, src, s.KeyID, &s.key, name), dst.Sync(), dst.Close())
}
