// Package embedded holds the small static binaries that forkd carries in itself, so that users
// install one file: the init of `forkd machine`, the VMM, the guest agent and forkd-net.
// scripts/build puts them into bin/ before forkd is compiled.
//
// It starts none of them and writes nothing to disk.
package embedded

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
)

// The binaries that a complete forkd carries.
const (
	Machined = "forkd-machined"
	VMM      = "forkd-vmm"
	Agent    = "forkd-agent"
	Net      = "forkd-net"
)

// ErrNotBuiltIn means that this forkd was compiled without the binary, for example by a plain `go
// build`.
var ErrNotBuiltIn = errors.New("not built into this forkd: build it with make")

//go:embed all:bin
var files embed.FS

// Open returns the contents of the binary called name. The error wraps ErrNotBuiltIn if it is not
// there.
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
