package docker

import (
	"fmt"
	"path/filepath"
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
		tags.all = append(tags.all, alias{Name: fmt.Sprint("x", n, ":1"), Snapshot: "x", ID: "x", Who: "user"})
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
