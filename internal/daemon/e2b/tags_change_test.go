package e2b

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/format/record"
)

// A request for a new sandbox looks up a tag without waiting until another client's change of the
// tags is on disk.
func TestTagsAreReadDuringChange(t *testing.T) {
	tags, err := OpenTags(filepath.Join(t.TempDir(), "tags"))
	if err != nil {
		t.Fatal(err)
	}
	add := func(name string) error {
		return tags.change(func(all []record.TemplateTag) ([]record.TemplateTag, error) {
			if name == "b:x" {
				if n := len(tags.of("a", "x")); n != 1 {
					t.Errorf("%d tags during a change", n)
				}
			}
			return append(all, record.TemplateTag{Name: name, Snapshot: "s", ID: "id", Who: "w", Assigned: time.Now()}), nil
		})
	}
	for _, name := range []string{"a:x", "b:x"} {
		if err := add(name); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(tags.of("b", "x")); n != 1 {
		t.Errorf("%d tags after the change", n)
	}
}
