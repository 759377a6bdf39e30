package eval

import (
	"crypto/rand"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Languages, by the names that clients use. The names "python" and "javascript" are also the ids of
// the default contexts of these languages.
const (
	python     = "python"
	javascript = "javascript"
	typescript = "typescript"
	bash       = "bash"
)

//go:embed drivers/reseed.py
var pythonReseed string

//go:embed drivers/wire.py
var pythonWire string

//go:embed drivers/rich.py
var pythonRich string

//go:embed drivers/chart.py
var pythonChart string

//go:embed drivers/own.py
var pythonOwn string

//go:embed drivers/jupyter.py
var pythonJupyter string

//go:embed drivers/main.py
var pythonMain string

//go:embed drivers/node.js
var nodeDriver string

//go:embed drivers/bash.sh
var bashDriver string

// A backend runs code of one language. It consists of a driver script for one of the guest's
// programs. All drivers follow the protocol for descriptors 3 and 4 that drivers/wire.py describes.
// TestBackends checks that they do.
type backend struct {
	language string
	program  string // name of the program, which is searched for in PATH
	args     []string
	driver   string // text of the driver, which the program reads from descriptor 5

	// encode converts a request to run code to the form that the driver reads.
	encode func(runRequest) ([]byte, error)

	// listens says that the driver reads its control socket even while code runs. Other drivers
	// learn of a fork only with the next code, from runRequest.Late.
	listens bool
}

// The bootstraps load the driver from descriptor 5, so that the guest needs no file for it.
const (
	pythonBootstrap = `f=open(5,"rb");s=f.read();f.close();del f;exec(compile(s,"<forkd-driver>","exec"),{"__name__":"forkd_driver"})`
	nodeBootstrap   = `const fs=require("fs");const s=fs.readFileSync(5,"utf8");fs.closeSync(5);` +
		`const driver=new (require("vm").Script)("(function(require,importer){"+s+"\n})",{filename:"forkd-driver"});` +
		`driver.runInThisContext()(require,(name)=>import(name))`
)

// backendOf returns the backend of a language.
func backendOf(language string) (*backend, error) {
	switch language {
	case python:
		return &backend{language: language, program: "python3", args: []string{"-c", pythonBootstrap}, encode: encodeJSON,
			listens: true,
			driver:  pythonReseed + pythonWire + pythonRich + pythonChart + pythonOwn + pythonJupyter + pythonMain}, nil
	case javascript, typescript:
		return &backend{language: language, program: "node", args: []string{"-e", nodeBootstrap, language},
			encode: encodeJSON,
			driver: nodeDriver}, nil
	case bash:
		return &backend{language: language, program: "bash", args: []string{"--norc", "--noprofile", "/dev/fd/5"},
			encode: encodeShell,
			driver: bashDriver}, nil
	}
	return nil, &unsupportedError{language, fmt.Sprintf("is not supported; use %s, %s, %s or %s", python, javascript,
		typescript, bash)}
}

// languageOf returns the constant for a language that a client names.
func languageOf(name string) string {
	switch name = strings.ToLower(strings.TrimSpace(name)); name {
	case "":
		return python
	case "js":
		return javascript
	case "ts":
		return typescript
	}
	return name
}

// unsupportedError says that a language is not available in the guest.
type unsupportedError struct{ language, reason string }

func (e *unsupportedError) Error() string { return fmt.Sprintf("language %q %s", e.language, e.reason) }

// find searches the PATH of environ for a backend's program, and returns the program's path.
func (b *backend) find(environ []string) (string, error) {
	for _, kv := range environ {
		path, ok := strings.CutPrefix(kv, "PATH=")
		if !ok {
			continue
		}
		for _, dir := range filepath.SplitList(path) {
			file := filepath.Join(dir, b.program)
			if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
				return file, nil
			}
		}
	}
	return "", &unsupportedError{b.language, fmt.Sprintf("needs %s, which is not installed in the guest", b.program)}
}

func encodeJSON(req runRequest) ([]byte, error) {
	line, err := json.Marshal(req)
	return append(line, '\n'), err
}

// encodeShell encodes a request as assignments for bash, which reads no JSON. The assignments end
// with a NUL byte.
func encodeShell(req runRequest) ([]byte, error) {
	if strings.ContainsRune(req.Code, 0) {
		return nil, &unsupportedError{bash, "takes no code with a NUL byte in it"}
	}
	var out strings.Builder
	var seed [4]byte
	rand.Read(seed[:]) // never fails, see crypto/rand
	fmt.Fprintf(&out, "__forkd_id=%d __forkd_code=%s __forkd_op=%s __forkd_seed=%d", req.ID, quote(req.Code),
		quote(req.Late.Op),
		binary.LittleEndian.Uint32(seed[:])>>1)
	for _, v := range []struct {
		name string
		vars map[string]string
	}{{"__forkd_lasting", req.Late.Env}, {"__forkd_env", req.Env}} {
		fmt.Fprintf(&out, " %s=(", v.name)
		for name, value := range v.vars {
			if !shellName.MatchString(name) {
				continue // bash cannot hold such a variable, nor pass it to its programs
			}
			out.WriteString(" " + name + " " + quote(value))
		}
		out.WriteString(")")
	}
	return append([]byte(out.String()), 0), nil
}

// shellName matches the names of variables that bash can hold.
var shellName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
