package image

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// TestDocumentedRecipesAreValid checks that the YAML in docs/recipes.md and README.md is a recipe
// or a part of a recipe.
func TestDocumentedRecipesAreValid(t *testing.T) {
	checked := 0
	for _, name := range []string{"docs/recipes.md", "README.md", "docs/uniqueness.md"} {
		text, err := os.ReadFile("../../../" + name)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range strings.Split(string(text), "```yaml\n")[1:] {
			recipe, _, ended := strings.Cut(block, "```")
			if !ended {
				t.Fatalf("%s: a block does not end", name)
			}
			if !strings.HasPrefix(recipe, "name:") {
				recipe = "name: x\nbase: debian:bookworm\n" + recipe
			}
			if _, err := ParseRecipe([]byte(recipe)); err != nil {
				t.Errorf("%s: %v in\n%s", name, err, recipe)
			}
			checked++
		}
	}
	if checked < 4 {
		t.Errorf("found %d recipes: the documents have more", checked)
	}
}

// TestEveryFieldIsDocumented checks that docs/recipes.md has a row for each field of a recipe.
func TestEveryFieldIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/recipes.md")
	if err != nil {
		t.Fatal(err)
	}
	fields := map[reflect.Type]string{reflect.TypeFor[Recipe](): "", reflect.TypeFor[Warmup](): "warmup.",
		reflect.TypeFor[File](): ""}
	for typ, prefix := range fields {
		for i := range typ.NumField() {
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("yaml"), ",")
			if name == "" || name == "-" || name == "warmup" {
				continue
			}
			if !strings.Contains(string(text), "\n| `"+prefix+name+"` |") {
				t.Errorf("docs/recipes.md has no row for %s%s", prefix, name)
			}
		}
	}
}
