package docker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/gate"
)

// One client cannot take the names of all clients.
func TestShareOfTags(t *testing.T) {
	tags := &tags{path: filepath.Join(t.TempDir(), "images")}
	give := func(name, who string) error {
		return tags.set(alias{Name: name, Snapshot: "x", ID: "x", Who: who}, func(alias) error { return nil })
	}
	for n := range gate.Fair(maxTags) {
		tags.all = append(tags.all, alias{Name: fmt.Sprint("x", n, ":1"), Snapshot: "x", ID: fmt.Sprint(n), Who: "user"})
	}
	if err := give("more:1", "user"); err == nil {
		t.Error("a client has given more names than its share")
	}
	if err := give("x7:1", "user"); err != nil {
		t.Errorf("a name that the client has given: %v", err)
	}
	if err := give("more:1", "root"); err != nil {
		t.Error(err)
	}
}

// The number of names of one image is bounded, so the entry of an image in a list is small. One
// client cannot give all of these names.
func TestShareOfTagsOfAnImage(t *testing.T) {
	tags := &tags{path: filepath.Join(t.TempDir(), "images")}
	give := func(name, id, who string) error {
		return tags.set(alias{Name: name, Snapshot: "x", ID: id, Who: who}, func(alias) error { return nil })
	}
	for n := range gate.Fair(maxTagsOf) {
		tags.all = append(tags.all, alias{Name: fmt.Sprint("x", n, ":1"), Snapshot: "x", ID: "x", Who: "user"})
	}
	if err := give("more:1", "x", "user"); err == nil {
		t.Error("a client has given more names to an image than its share")
	}
	if err := give("more:1", "y", "user"); err != nil {
		t.Errorf("a name of another image: %v", err)
	}
	for n := range maxTagsOf - gate.Fair(maxTagsOf) {
		tags.all = append(tags.all, alias{Name: fmt.Sprint("y", n, ":1"), Snapshot: "x", ID: "x", Who: "other"})
	}
	if err := give("last:1", "x", "root"); err == nil {
		t.Error("an image has too many names")
	}
}

// The daemon writes no file that the next daemon would refuse.
func TestSizeOfTags(t *testing.T) {
	path := filepath.Join(t.TempDir(), "images")
	tags := &tags{path: path}
	tags.all = []alias{{Name: "x:1", Snapshot: "x", ID: "x", Who: strings.Repeat("w", maxTagsFile)}}
	err := tags.set(alias{Name: "y:1", Snapshot: "x", ID: "x", Who: "root"}, func(alias) error { return nil })
	if _, missing := os.Stat(path); err == nil || !errors.Is(missing, fs.ErrNotExist) {
		t.Errorf("the file is written: %v, %v", err, missing)
	}
	if len(tags.list()) != 1 {
		t.Error("a name that is not in the file is in use")
	}
}
