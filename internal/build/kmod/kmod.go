// Package kmod collects kernel modules for an initramfs. It resolves the dependencies of the
// modules, decompresses the modules, and returns the modules in the order in which a kernel must
// load them.
//
// It works on the modules directory of an unpacked kernel package. It reads the dependencies of a
// module from the module itself (the field "depends" of .modinfo), because a package has no
// modules.dep before it is installed. It ignores aliases and soft dependencies. A soft dependency
// of a module is another module that the module may request at run time. The caller must name such
// modules (ext4, for example, requests crc32c_generic). The package loads nothing into a kernel.
//
// Modules keep their signatures, so that a kernel can check them. Unsigned removes the signature of
// a module, so that the kernel need not spend time on the check.
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

// maxModuleBytes bounds one decompressed module. The largest module of a distribution's kernel has
// about 20 MiB.
const maxModuleBytes = 128 << 20

// Module is one module, ready for finit_module or init_module.
type Module struct {
	Name string // in the form of lsmod: with underscores, without ".ko"
	Data []byte // the decompressed ELF object, with its signature if it has one
}

// Collect returns the modules with the given names and all their dependencies. Each module occurs
// once, after its dependencies. Names may contain "-" or "_". Modules that are built into the
// kernel are omitted. The modules are below dir, which is lib/modules/<version>.
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

// canonical returns a module's name as the kernel spells it.
func canonical(name string) string { return strings.ReplaceAll(name, "-", "_") }

// moduleName returns the canonical name of the module in a file. If the file is not a module, it
// returns false.
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

// signatureMagic ends a signed module. Before it are the signature and then a description of 12
// bytes. The last 4 bytes of the description are the length of the signature, in big endian (Linux
// include/linux/module_signature.h).
const (
	signatureMagic   = "~Module signature appended~\n"
	signatureTrailer = 12
)

// Unsigned returns a module without its signature. If the signature is missing or damaged, it
// returns the module unchanged. A kernel that does not require signatures loads an unsigned module,
// and sets the taint flag "unsigned module".
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

// depends reads the field "depends" from the section .modinfo of a module. The section consists of
// KEY=VALUE strings that end with NUL.
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
