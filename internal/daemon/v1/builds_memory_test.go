package v1_test

import (
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
)

// kept returns the tags of steps, and whether each has memory: "m" or "d", in the order in which they were
// made.
func kept(t *testing.T, r *apirig.Rig) (text string) {
	t.Helper()
	list, err := r.Snapshots(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		switch {
		case !strings.HasPrefix(s.Tag, "step-"):
		case s.DiskOnly:
			text += "d"
		default:
			text += "m"
		}
	}
	return text
}

// Steps have no memory until a warm step, unless their base has: the result is booted from their disk.
func TestStepsHaveADiskOnly(t *testing.T) {
	r, _ := builder(t)
	const steps = "RUN true\nRUN true 2\n"
	req := client.BuildRequest{Tag: "made", Dockerfile: "FROM " + apirig.Image + "\n" + steps, Replace: true}
	if res, log, err := built(t, r.Client, req, nil); err != nil || res.Run != 4 {
		t.Fatalf("%+v, %v\n%s", res, err, log)
	}
	if got := kept(t, r); strings.Count(got, "d") != 2 || strings.Count(got, "m") != 1 { // the image has booted
		t.Errorf("steps on an image are %q", got)
	}
	if d, err := r.Snapshot(t.Context(), "made"); err != nil || d.DiskOnly {
		t.Errorf("the result is %+v, %v", d, err)
	}
	req.Dockerfile += "# forkd: warm true\nRUN true 3\n"
	if res, log, err := built(t, r.Client, req, nil); err != nil || res.Run != 3 || res.Cached != 3 {
		t.Fatalf("with a warm step: %+v, %v\n%s", res, err, log)
	}
	if got := kept(t, r); strings.Count(got, "d") != 2 || strings.Count(got, "m") != 3 {
		t.Errorf("with a warm step they are %q", got)
	}
	r.Steps.Trim(0)
	req.Dockerfile = "FROM a.b\n" + steps // which has memory
	if res, log, err := built(t, r.Client, req, nil); err != nil || res.Run != 3 || kept(t, r) != "mm" {
		t.Errorf("on a snapshot with memory: %+v, %v, %s\n%s", res, err, kept(t, r), log)
	}
	if list, err := r.Sandboxes(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("sandboxes are left: %v, %v", list, err)
	}
}

// COPY --from reads from the sandbox that the stage has left, and from a fork where there is none.
func TestStagesWithoutMemory(t *testing.T) {
	r, dir := builder(t)
	text := strings.NewReplacer("IMAGE", apirig.Image, "DIR", dir).Replace(`FROM IMAGE AS one
RUN mkdir -p DIR/in && echo a > DIR/in/a && echo b > DIR/in/b
FROM IMAGE
COPY --from=one DIR/in/a DIR/out/
COPY --from=one DIR/in/b DIR/out/
RUN cat DIR/out/*
`)
	req := client.BuildRequest{Tag: "made", Dockerfile: text, Replace: true}
	res, log, err := built(t, r.Client, req, nil)
	if err != nil || res.Run != 6 {
		t.Fatalf("%+v, %v\n%s", res, err, log)
	}
	hasLines(t, log, "4: a", "4: b")
	req.Dockerfile += "COPY --from=one " + dir + "/in/a " + dir + "/c\n" // all before it is there
	if res, log, err = built(t, r.Client, req, nil); err != nil || res.Run != 2 {
		t.Errorf("with one more: %+v, %v\n%s", res, err, log)
	}
}
