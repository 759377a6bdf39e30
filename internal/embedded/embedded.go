// Package embedded contains the small static programs that are part of forkd, so that users install
// only one file: the init of `forkd machine`, the VMM, the guest agent, forkd-net and others.
// scripts/build writes the programs to bin/ before it compiles forkd.
//
// It does not start the programs, and writes nothing to disk.
package embedded

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
)

// The programs that a complete forkd contains.
const (
	Machined = "forkd-machined"
	VMM      = "forkd-vmm"
	Agent    = "forkd-agent"
	Net      = "forkd-net"
	Unpack   = "forkd-unpack"
	Diff     = "forkd-diff"
	Files    = "forkd-files"
	SFTP     = "forkd-sftp"
	SSH      = "forkd-ssh"
	Feed     = "forkd-feed"
)

// ErrNotBuiltIn means that this forkd was compiled without the program, for example by a plain `go
// build`.
var ErrNotBuiltIn = errors.New("not built into this forkd: build it with make")

//go:embed all:bin
var files embed.FS

// Open returns the program with the given name. If it is missing, the error wraps ErrNotBuiltIn.
func Open(name string) ([]byte, error) {
	data, err := fs.ReadFile(files, "bin/"+name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid) {
		return nil, fmt.Errorf("%s is %w", name, ErrNotBuiltIn)
	}
	if err != nil {
		return nil, fmt.Errorf("read embedded %s: %w", name, err)
	}
	return data, nil
}
