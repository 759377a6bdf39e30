package v1_test

import (
	"bytes"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
)

// kept returns a letter for each snapshot of a step, in the order of creation: "m" if it has
// memory, or "d" if it has only a disk.
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

// If the base has no memory, the snapshots of steps have none either until a step warms the guest
// up. If a result has no memory, a sandbox forked from it boots.
func TestStepsHaveADiskOnly(t *testing.T) {
	r, _ := builder(t)
	const steps = "RUN true\nRUN true 2\n"
	req := client.BuildRequest{Tag: "made", Dockerfile: "FROM " + apirig.Image + "\n" + steps, Replace: true}
	if res, log, err := built(t, r.Client, req, nil); err != nil || res.Run != 4 {
		t.Fatalf("%+v, %v\n%s", res, err, log)
	}
	// A VM has booted from the image, so the step of the image has memory.
	if got := kept(t, r); strings.Count(got, "d") != 2 || strings.Count(got, "m") != 1 {
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
	req.Dockerfile = "FROM a.b\n" + steps // the base a.b has memory
	if res, log, err := built(t, r.Client, req, nil); err != nil || res.Run != 3 || kept(t, r) != "mm" {
		t.Errorf("on a snapshot with memory: %+v, %v, %s\n%s", res, err, kept(t, r), log)
	}
	if list, err := r.Sandboxes(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("sandboxes are left: %v, %v", list, err)
	}
}

// COPY --from reads from the stage's sandbox, or from a fork of its snapshot if the sandbox is
// gone.
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
	req.Dockerfile += "COPY --from=one " + dir + "/in/a " + dir + "/c\n" // all earlier steps are cached
	if res, log, err = built(t, r.Client, req, nil); err != nil || res.Run != 2 {
		t.Errorf("with one more: %+v, %v\n%s", res, err, log)
	}
}

// A secret reaches the commands that request it. The daemon writes it nowhere.
func TestSecretsOfBuilds(t *testing.T) {
	r, dir := builder(t)
	secret := strings.Repeat("hidden!", 3)
	req := client.BuildRequest{Tag: "made", Secrets: map[string][]byte{"tok": []byte(secret)},
		Dockerfile: "FROM " + apirig.Image + `
RUN --mount=type=secret,id=tok,env=TOK --mount=type=secret,id=none,env=NONE echo "${#TOK} ${NONE-unset}"
RUN echo "${TOK-gone}" > ` + dir + "/after\n"}
	res, log, err := built(t, r.Client, req, nil)
	if err != nil || res.Run != 4 {
		t.Fatalf("%+v, %v\n%s", res, err, log)
	}
	hasLines(t, log, "1: 21 unset")
	if text, err := os.ReadFile(dir + "/after"); err != nil || string(text) != "gone\n" {
		t.Errorf("the next step has %q, %v", text, err)
	}
	req.Secrets["tok"] = []byte("another secret") // the cached steps do not depend on the secret
	req.Replace = true
	if res, log, err := built(t, r.Client, req, nil); err != nil || res.Run != 0 {
		t.Errorf("with another secret: %+v, %v\n%s", res, err, log)
	}
	state := filepath.Dir(r.TokenFile)
	files := 0
	err = filepath.WalkDir(state, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // the daemon moves layers out of RAM at the same time
			return nil
		}
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		files++
		if bytes.Contains(text, []byte(secret)) {
			t.Errorf("%s has the secret", path)
		}
		return err
	})
	if err != nil || files < 10 {
		t.Errorf("%d files, %v", files, err)
	}
	for _, c := range []struct {
		req  client.BuildRequest
		want string
	}{
		{client.BuildRequest{Tag: "x", Dockerfile: "FROM a.b\nRUN --mount=type=secret,id=no,required x"},
			"Dockerfile:2: [stage-0 2/2] RUN --mount=type=secret,id=no,required x: secret no: none was given"},
		{client.BuildRequest{Tag: "x", Dockerfile: "FROM a.b\n# forkd: warm x\nRUN --mount=type=secret,id=no x"},
			"below a # forkd: warm line"},
		{client.BuildRequest{Tag: "x", Dockerfile: "FROM a.b",
			Secrets: map[string][]byte{"big": make([]byte, 500<<10+1)}}, "at most 512000"},
	} {
		if _, _, err := built(t, r.Client, c.req, nil); !client.IsStatus(err, http.StatusBadRequest) ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want 400 with %q", err, c.want)
		}
	}
}
