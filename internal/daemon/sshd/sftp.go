package sshd

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"sync"

	"github.com/forkd/forkd/internal/host/agentclient"
)

// ProgramDir is the directory of Program in a guest. It is on tmpfs, so the program is not on the
// guest's disk.
const ProgramDir = "/run/forkd"

// Program is the SFTP server. The daemon puts it into a guest for the guest's first SFTP session,
// and runs it as the account of the session. So the daemon parses no SFTP, and guests of older
// snapshots have the same program as other guests.
type Program struct {
	dir  string
	file func() (programFile, error)
}

type programFile struct {
	name    string // contains a digest, because a guest may have a program of another daemon
	size    int64
	archive []byte // tar archive with the program as "sftp"
}

// NewProgram returns a Program that is put into the directory dir of guests. It calls open() for
// the content of the program's file.
func NewProgram(dir string, open func() ([]byte, error)) Program {
	return Program{dir, sync.OnceValues(func() (f programFile, err error) {
		content, err := open()
		if err != nil {
			return f, err
		}
		sum := sha256.Sum256(content)
		var archive bytes.Buffer
		w := tar.NewWriter(&archive)
		_ = w.WriteHeader(&tar.Header{Name: "sftp", Mode: 0o755, Size: int64(len(content))}) // Close returns the error
		_, _ = w.Write(content)
		err = w.Close()
		return programFile{"sftp-" + hex.EncodeToString(sum[:8]), int64(len(content)), archive.Bytes()}, err
	})}
}

// place returns the path of the program in a guest. If the guest does not have the program, place
// copies it into the guest. The guest may replace the program. This is harmless, because the
// program has the same rights as other processes of the guest.
func (p Program) place(ctx context.Context, guest *agentclient.Client) (string, error) {
	f, err := p.file()
	if err != nil {
		return "", err
	}
	final := path.Join(p.dir, f.name)
	if e, err := guest.Stat(ctx, final, root); err == nil && e.Type == "file" && e.Size == f.size {
		return final, nil
	}
	var random [8]byte
	rand.Read(random[:]) // never fails
	passing := path.Join(p.dir, fmt.Sprintf("new-%x", random))
	if err := guest.WriteTree(ctx, passing, root, bytes.NewReader(f.archive)); err != nil {
		return "", err
	}
	if _, err := guest.Move(ctx, path.Join(passing, "sftp"), final, root); err != nil {
		return "", err
	}
	return final, guest.Remove(ctx, passing, root)
}

// root is the account that owns the program.
const root = "root"
