package recipes

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Every directory here is a recipe that is built in and has a README.
func TestEveryRecipeIsBuiltInAndHasAReadme(t *testing.T) {
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	builtIn, err := fs.Glob(FS, "*/recipe.yaml")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, e := range entries {
		dir := e.Name()
		if !e.IsDir() {
			continue
		}
		if !slices.Contains(builtIn, filepath.Join(dir, "recipe.yaml")) {
			t.Errorf("%s is not built in: %q", dir, builtIn)
		}
		if _, err := os.Stat(filepath.Join(dir, "README.md")); err != nil {
			t.Error(err)
		}
		checked++
	}
	if checked != len(builtIn) || checked == 0 {
		t.Errorf("%d recipe directories, %d built in", checked, len(builtIn))
	}
}

// Every recipe with Python has the commands that an agent's shell tries first, including `python`.
func TestPythonRecipesHaveWhatAShellTriesFirst(t *testing.T) {
	names, err := fs.Glob(FS, "*/recipe.yaml")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, name := range names {
		recipe, err := fs.ReadFile(FS, name)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(recipe), "\n")
		if !slices.Contains(lines, "  - python3") {
			continue
		}
		for _, want := range []string{"python-is-python3", "git", "curl", "procps", "openssh-client", "less",
			"ca-certificates"} {
			if !slices.Contains(lines, "  - "+want) {
				t.Errorf("%s: the package %s is missing", name, want)
			}
		}
		checked++
	}
	if checked < 4 {
		t.Errorf("%d recipes with Python were looked at", checked)
	}
}
