package owner

import (
	"context"
	"fmt"
	"time"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/invalid"
)

// BranchTag returns the tag for a new snapshot of the sandbox with the given id. It checks the
// requested tag. If the requested tag is empty, BranchTag chooses a tag. Only a step of a build may
// use a tag in the form of snapshot.StepTag.
func BranchTag(ctx context.Context, tag, id string, at time.Time, step bool) (string, error) {
	p := PrefixOf(ctx)
	switch {
	case snapshot.IsStepTag(tag) && !step:
		return "", invalid.Errorf("tag", "%q: such tags are for steps of builds: choose another", tag)
	case tag != "":
	case p != "":
		tag = p.Tags() + snapshot.NewID()[:16]
	default:
		tag = fmt.Sprintf("branch-%s-%d-%s", id, at.Unix(), snapshot.NewID()[:4])
	}
	if err := snapshot.CheckTag(tag); err != nil {
		return "", &invalid.Error{Field: "tag", Reason: err.Error()}
	}
	return tag, Within(ctx, p.HasTag(tag), "tag: %q", tag)
}

// BootTag returns a new tag, within the prefix of the client in ctx, for a parent that is booted for a
// fork.
func BootTag(ctx context.Context) string {
	tag := "boot-" + snapshot.NewID()[:16]
	if p := PrefixOf(ctx); p != "" {
		return p.Tags() + tag
	}
	return tag
}
