package recipes

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// Every directory here is a recipe that is built in and explained.
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
