// Package mutants has defects for the product, as patches. Each patch breaks one thing on which
// copies of a guest depend. Command run builds the product with one defect at a time and lets the
// torture find it. So the patches show what the torture is able to notice.
//
// The build takes the patched files from an overlay (go build -overlay). The source tree stays as it
// is, and the product needs no hooks.
package mutants

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

//go:embed patches
var patches embed.FS

// Mutant is a defect.
type Mutant struct {
	Name  string
	Text  string   // what is wrong, in one paragraph
	Run   string   // the torture that must find the defect: VMM or Daemon
	Files []string // patched files, relative to the root of the module
	patch []byte
}

// The two kinds of torture; see scripts/torture.
const (
	VMM    = "vmm"
	Daemon = "daemon"
)

// All returns the mutants, sorted by name.
func All() ([]Mutant, error) {
	names, err := fs.Glob(patches, "patches/*.patch")
	if err != nil {
		return nil, err
	}
	var all []Mutant
	for _, name := range names {
		p, err := patches.ReadFile(name)
		if err != nil {
			return nil, err
		}
		m, err := parse(strings.TrimSuffix(path.Base(name), ".patch"), p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, m)
	}
	return all, nil
}

// parse reads a patch. Above the diff there is the description, and a line such as "Run: vmm".
func parse(name string, p []byte) (Mutant, error) {
	m := Mutant{Name: name, patch: p}
	head, diff, ok := strings.Cut(string(p), "\ndiff --git ")
	if !ok {
		return m, fmt.Errorf("no line begins with 'diff --git'")
	}
	text, run, _ := strings.Cut(head, "\nRun: ")
	m.Text, m.Run = strings.Join(strings.Fields(text), " "), strings.TrimSpace(run)
	if m.Text == "" || m.Run != VMM && m.Run != Daemon {
		return m, fmt.Errorf("want a description and 'Run: %s' or 'Run: %s' above the diff", VMM, Daemon)
	}
	for line := range strings.Lines(diff) {
		if file, ok := strings.CutPrefix(line, "+++ b/"); ok {
			m.Files = append(m.Files, strings.TrimSpace(file))
		}
	}
	if len(m.Files) == 0 {
		return m, fmt.Errorf("no line begins with '+++ b/', so the patch changes no file")
	}
	return m, nil
}

// Overlay writes the patched files of the module at root into the empty directory dir. It returns
// them as an overlay: the path of each original file, with the path of the file that replaces it.
// Overlay fails if the patch does not apply exactly. A Mutant without files is the product without a
// defect; its overlay is empty.
func (m *Mutant) Overlay(root, dir string) (map[string]string, error) {
	replaced := map[string]string{}
	if len(m.Files) == 0 {
		return replaced, nil
	}
	for _, name := range m.Files {
		p, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return nil, err
		}
		own := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(own), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(own, p, 0o644); err != nil {
			return nil, err
		}
		replaced[filepath.Join(root, name)] = own
	}
	apply := exec.Command("git", "apply", "-")
	apply.Dir, apply.Stdin = dir, bytes.NewReader(m.patch)
	// Inside a repository, git would look for the files at the repository's root.
	apply.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	if out, err := apply.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("mutant %s: apply test/mutants/patches/%[1]s.patch: %w: %s", m.Name, err, out)
	}
	for from, to := range replaced {
		before, err := os.ReadFile(from)
		if err != nil {
			return nil, err
		}
		after, err := os.ReadFile(to)
		if err != nil {
			return nil, err
		}
		if bytes.Equal(before, after) {
			return nil, fmt.Errorf("mutant %s: git has not changed %s", m.Name, to)
		}
	}
	return replaced, nil
}

// WriteOverlay writes an overlay to a file for the flag -overlay of the go command.
func WriteOverlay(file string, replaced map[string]string) error {
	p, err := json.Marshal(struct{ Replace map[string]string }{replaced})
	if err != nil {
		return err
	}
	return os.WriteFile(file, p, 0o644)
}
