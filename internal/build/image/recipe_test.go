package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/forkd/forkd/recipes"
)

const minimal = "name: x\nbase: debian:bookworm\n"

func TestRecipeErrorsNameFieldAndLine(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "empty"},
		{minimal + "memroy_mib: 1\n", `line 3: unknown field "memroy_mib"`},
		{minimal + "warmup:\n  pyhton: x\n", `line 4: unknown field "pyhton"`},
		{minimal + "name: y\n", "line 3: mapping key \"name\" already defined at line 1"},
		{minimal + "memory_mib: lots\n", "line 3"},
		{minimal + "---\nname: z\n", "more than one"},
		{"name: X Y\nbase: debian:bookworm\n", "name: "},
		{"name: x\n", "base: "},
		{"name: x\nbase: 'debian:'\n", "base: "},
		{"name: x\nbase: debian:book worm\n", "base: "},
		{"name: x\nbase: docker:alpine\n", "base: "},
		{"name: x\nbase: docker://alpine\npackages: [vim]\n", "packages: "},
		{minimal + "packages: [--option]\n", "packages[0]: "},
		{minimal + "packages: [ok, 'a,b']\n", "packages[1]: "},
		{minimal + "env: {'A=B': c}\n", "env: "},
		{minimal + "memory_mib: 1\n", "memory_mib: 1 is not between"},
		{minimal + "vcpus: -1\n", "vcpus: "},
		{minimal + "vcpus: 256\n", "vcpus: 256 is not between 1 and 255"},
		{minimal + "warmup: {timeout_secs: -1}\n", "warmup: timeout_secs: -1 is not between"},
		{minimal + "warmup: {timeout_secs: .nan}\n", "warmup: timeout_secs: NaN is not between"},
		{minimal + "volume_slots: 9\n", "volume_slots: 9 is not between 0 and 8"},
		{minimal + "disk_mib: 9999999\n", "disk_mib: "},
		{minimal + "files: [{source: a, target: b}]\n", "files[0]: target: "},
		{minimal + "files: [{source: a, target: /../b}]\n", "files[0]: target: "},
		{minimal + "files: [{source: a, target: /proc/b}]\n", "files[0]: target: "},
		{minimal + "files: [{source: ../a, target: /b}]\n", "files[0]: source: "},
		{minimal + "files: [{source: /a, target: /b}]\n", "files[0]: source: "},
		{minimal + "files: [{source: a, target: /b}, {source: c, target: /b}]\n", "files[1]: target: "},
		{minimal + "files:\n- source: a\n  target: /b\n  mode: 999\n", "line 6: mode \"999\""},
	} {
		_, err := ParseRecipe([]byte(c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got error %v, want one with %q", c.text, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "image.") {
			t.Errorf("%q: error shows a Go type: %v", c.text, err)
		}
	}
}

func TestRecipeDefaultsAndModes(t *testing.T) {
	r, err := ParseRecipe([]byte(minimal +
		"files:\n- {source: a, target: /a}\n- {source: a, target: /b, mode: 0755}\n- {source: a, target: /c, mode: '600'}\nenv: {N: 1}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if r.MemoryMiB != 512 || r.VCPUs != 1 || r.DiskMiB != 1024 {
		t.Errorf("defaults: %d MiB, %d vCPUs, %d MiB disk", r.MemoryMiB, r.VCPUs, r.DiskMiB)
	}
	for i, want := range []Mode{0, 0o755, 0o600} {
		if r.Files[i].Mode != want {
			t.Errorf("files[%d]: mode %o, want %o", i, r.Files[i].Mode, want)
		}
	}
	if r.Env["N"] != "1" {
		t.Errorf("env N = %q", r.Env["N"])
	}
}

func TestLoadRecipeReadsFilesAndStaysInside(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("recipe.yaml", minimal+"files: [{source: a, target: /a}]\n")
	if _, err := LoadRecipe(dir); err == nil || !strings.Contains(err.Error(), "files[0]: source") {
		t.Errorf("missing source: %v", err)
	}
	write("a", "hello")
	r, err := LoadRecipe(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(r.files[0].data); got != "hello" {
		t.Errorf("data %q", got)
	}
	if err := os.Remove(filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadRecipe(filepath.Join(dir, "recipe.yaml")); err == nil {
		t.Error("a symbolic link out of the recipe's directory was followed")
	}
}

func TestShippedRecipesAreValid(t *testing.T) {
	entries, err := recipes.FS.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) < 2 {
		t.Fatalf("%d recipes built in", len(entries))
	}
	for _, e := range entries {
		r, err := LoadRecipeFS(recipes.FS, e.Name())
		if err != nil {
			t.Error(err)
			continue
		}
		if r.Name != e.Name() || r.Description == "" {
			t.Errorf("recipe %s: name %q, description %q", e.Name(), r.Name, r.Description)
		}
	}
}

func TestRecipeFileTooLarge(t *testing.T) {
	fsys := fstest.MapFS{"r/recipe.yaml": {Data: []byte(minimal + "#" + strings.Repeat("x", maxRecipeBytes))}}
	if _, err := LoadRecipeFS(fsys, "r"); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("got %v", err)
	}
}
