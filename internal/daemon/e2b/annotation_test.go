package e2b

import (
	"encoding/json"
	"testing"

	"github.com/forkd/forkd/internal/host/sandbox"
)

// The ports of E2B's sandboxes can be open to strangers. Sandboxes with the annotation of another
// package do not belong to E2B.
func TestAnnotationsOfOthers(t *testing.T) {
	for _, text := range []string{"", "null", "{}", `{"disk_of":true}`, `{"build":"b"}`, `{"private":false}`,
		`{"timeout":null}`} {
		if _, own := annotationOf(sandbox.Info{Annotation: json.RawMessage(text)}); own {
			t.Errorf("%q is E2B's", text)
		}
	}
	p, err := json.Marshal(annotation{})
	if err != nil {
		t.Fatal(err)
	}
	if _, own := annotationOf(sandbox.Info{Annotation: p}); !own {
		t.Errorf("%s is not E2B's", p)
	}
}
