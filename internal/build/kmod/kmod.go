// Package kmod collects kernel modules for an initramfs: it resolves their dependencies,
// decompresses them and returns them in the order in which they must be loaded.
//
// It works on the unpacked modules directory of a kernel package. It reads dependencies from the
// modules themselves (the "depends" field of .modinfo), because depmod creates modules.dep only
// when a package is installed. It does not follow aliases and soft dependencies, which name modules
// that a module may request later. Name such modules explicitly (ext4, for example, wants
// crc32c_generic). It loads nothing.
//
// Modules keep their signatures, so that a kernel can check them. Unsigned removes the signature,
// which saves the kernel the check.
package kmod

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/therootcompany/xz"
)

// ErrNotFound means that a module is neither in the directory nor built into the kernel.
var ErrNotFound = errors.New("no such module")

// maxModuleBytes bounds one decompressed module; the largest of a distribution kernel is about 20
// MiB.
const maxModuleBytes = 128 << 20

// Module is one module, ready for finit_module or init_module.
type Module struct {
	Name string // as lsmod prints it: with underscores, without ".ko"
	Data []byte // the decompressed ELF object, with its signature if it has one
}

// Collect returns the modules called names and all their dependencies, each once, dependencies
// first. Names may be written with "-" or "_". Modules built into the kernel are omitted. dir is
// lib/modules/<version>.
func Collect(dir string, names []string) ([]Module, error) {
	paths, err := index(dir)
	if err != nil {
		return nil, err
	}
	builtin, err := builtins(dir)
	if err != nil {
		return nil, err
	}
	c := collector{dir: dir, paths: paths, builtin: builtin, state: make(map[string]visit)}
	for _, name := range names {
		if err := c.add(canonical(name)); err != nil {
			return nil, fmt.Errorf("collect module %q: %w", name, err)
		}
	}
	return c.out, nil
}

type visit int

const (
	visiting visit = iota + 1
	done
)

type collector struct {
	dir     string
	paths   map[string]string // module name → path below dir
	builtin map[string]bool
	state   map[string]visit
	out     []Module
}

func (c *collector) add(name string) error {
	switch {
	case c.state[name] == done:
		return nil
	case c.state[name] == visiting:
		return fmt.Errorf("%s depends on itself", name)
	}
	path, ok := c.paths[name]
	if !ok {
		if c.builtin[name] {
			return nil
		}
		return fmt.Errorf("%s in %s: %w", name, c.dir, ErrNotFound)
	}
	data, err := read(filepath.Join(c.dir, path))
	if err != nil {
		return err
	}
	deps, err := depends(data)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	c.state[name] = visiting
	for _, dep := range deps {
		if err := c.add(canonical(dep)); err != nil {
			return fmt.Errorf("needed by %s: %w", name, err)
		}
	}
	c.state[name] = done
	c.out = append(c.out, Module{Name: name, Data: data})
	return nil
}

// canonical returns the kernel's spelling of a module's name.
func canonical(name string) string { return strings.ReplaceAll(name, "-", "_") }

// moduleName returns the canonical name of a module file. ok is false for any other file.
func moduleName(path string) (string, bool) {
	base, _, ok := strings.Cut(filepath.Base(path), ".ko")
	return canonical(base), ok
}

func index(dir string) (map[string]string, error) {
	paths := make(map[string]string)
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name, ok := moduleName(path); ok && entry.Type().IsRegular() {
			paths[name] = path
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list modules in %s: %w", dir, err)
	}
	return paths, nil
}

func builtins(dir string) (map[string]bool, error) {
	f, err := os.Open(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, fmt.Errorf("list built-in modules: %w", err)
	}
	defer f.Close()
	out := make(map[string]bool)
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if name, ok := moduleName(lines.Text()); ok {
			out[name] = true
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("list built-in modules: %w", err)
	}
	return out, nil
}

// read returns the decompressed module at path.
func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var r io.Reader
	switch filepath.Ext(path) {
	case ".ko":
		r = f
	case ".xz":
		r, err = xz.NewReader(f, 0)
	case ".gz":
		r, err = gzip.NewReader(f)
	case ".zst":
		var d *zstd.Decoder
		if d, err = zstd.NewReader(f, zstd.WithDecoderConcurrency(1)); err == nil {
			defer d.Close()
			r = d
		}
	default:
		return nil, fmt.Errorf("read %s: unknown compression; .ko, .ko.xz, .ko.gz and .ko.zst are known", path)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	data, err := io.ReadAll(io.LimitReader(r, maxModuleBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if len(data) > maxModuleBytes {
		return nil, fmt.Errorf("read %s: larger than %d bytes", path, maxModuleBytes)
	}
	return data, nil
}

// signatureMagic ends a signed module. Before it comes the signature, then its 12-byte description.
// The last 4 bytes of the description are the signature's length, big endian (Linux
// include/linux/module_signature.h).
const (
	signatureMagic   = "~Module signature appended~\n"
	signatureTrailer = 12
)

// Unsigned returns a module without its signature. A module without one, or with a damaged one, is
// returned unchanged. A kernel that does not require signatures loads the result with the taint
// "unsigned module".
func Unsigned(module []byte) []byte {
	body, ok := bytes.CutSuffix(module, []byte(signatureMagic))
	if !ok || len(body) < signatureTrailer {
		return module
	}
	length := int64(binary.BigEndian.Uint32(body[len(body)-4:])) + signatureTrailer
	if length > int64(len(body)) {
		return module
	}
	return body[:int64(len(body))-length]
}

// depends reads the "depends" field of the module's .modinfo section: NUL-separated key=value
// strings.
func depends(data []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("parse module: %w", err)
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, errors.New("parse module: no .modinfo section")
	}
	info, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("parse module: %w", err)
	}
	for field := range bytes.SplitSeq(info, []byte{0}) {
		if list, ok := bytes.CutPrefix(field, []byte("depends=")); ok && len(list) > 0 {
			return strings.Split(string(list), ","), nil
		}
	}
	return nil, nil
}
