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
	dirs, err := filepath.Glob("*/")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no recipe directories: %v", err)
	}
	builtIn, err := fs.Glob(FS, "*/recipe.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		if !slices.Contains(builtIn, filepath.Join(dir, "recipe.yaml")) {
			t.Errorf("%s is not built in: %q", dir, builtIn)
		}
		if _, err := os.Stat(filepath.Join(dir, "README.md")); err != nil {
			t.Error(err)
		}
	}
}
