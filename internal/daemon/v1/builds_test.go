package v1_test

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
)

// built runs a build. It returns the result and a log with a line for each event. The faked guests
// of the build use the host's file system.
func built(
	t *testing.T,
	cl *client.Client,
	req client.BuildRequest,
	files map[string]string,
) (client.BuildResult, string,
	error) {
	t.Helper()
	var log []string
	r, err := cl.Build(t.Context(), req, func(out *tar.Writer) error {
		for name, content := range files {
			h := &tar.Header{
				Name:     apiv1.BuildContext + name,
				Typeflag: tar.TypeReg,
				Mode:     0o640,
				Size:     int64(len(content)),
			}
			if link, ok := strings.CutPrefix(content, "link:"); ok {
				h.Typeflag, h.Linkname, h.Size, content = tar.TypeSymlink, link, 0, ""
			}
			if err := out.WriteHeader(h); err != nil {
				return err
			}
			if _, err := out.Write([]byte(content)); err != nil {
				return err
			}
		}
		return nil
	}, func(e client.BuildEvent) error {
		switch {
		case e.Plan != nil:
			for _, n := range e.Plan.Notes {
				log = append(log, fmt.Sprintf("note %d %s", n.Line, n.Text))
			}
		case e.Step != nil:
			log = append(log, fmt.Sprintf("%d %s", e.Step.Number, e.Step.State))
		case e.Output != nil:
			log = append(log, fmt.Sprintf("%d: %s", e.Output.Number, e.Output.Line))
		}
		return nil
	})
	return r, strings.Join(log, "\n"), err
}

func hasLines(t *testing.T, log string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !slices.Contains(strings.Split(log, "\n"), w) {
			t.Errorf("the log has no line %q:\n%s", w, log)
		}
	}
}

// builder starts the API with a snapshot to build from.
func builder(t *testing.T) (r *apirig.Rig, dir string) {
	t.Helper()
	r = start(t, apirig.Options{})
	if _, err := r.Bake(t.Context(), r.Parent); err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return r, dir
}

// Every step runs once. It runs again only if the step, its inputs or an earlier step has changed.
func TestBuildsGoOnFromWhatHasChanged(t *testing.T) {
	r, dir := builder(t)
	dockerfile := func(last string) string {
		return fmt.Sprintf(`FROM a.b AS one
ARG WORD=hello
WORKDIR %[1]s/work
COPY in.txt sub/link ./
RUN echo "$WORD $(cat in.txt) $(readlink link)" && echo one >> runs
FROM one
RUN <<EOF
echo two >> runs
echo err >&2
EOF
RUN echo %[2]s && echo three >> runs
CMD ["x"]
`, dir, last)
	}
	files := map[string]string{"in.txt": "world", "sub/link": "link:in.txt", "unused": "1"}
	runs := func() string {
		text, err := os.ReadFile(filepath.Join(dir, "work", "runs"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(strings.Fields(string(text)), " ")
	}
	req := client.BuildRequest{Tag: "made", Dockerfile: dockerfile("last"), Replace: true}
	res, log, err := built(t, r.Client, req, files)
	if err != nil {
		t.Fatal(err, "\n", log)
	}
	if res.Tag != "made" || res.Run != 6 || res.Cached != 1 || runs() != "one two three" {
		t.Errorf("the first build: %+v, %s\n%s", res, runs(), log)
	}
	hasLines(t, log, "3: hello world in.txt", "4: err", "5: last",
		"note 12 CMD has no effect: a sandbox starts no command; # forkd: warm COMMAND keeps one running")
	files["unused"] = "2"
	res, log, err = built(t, r.Client, req, files)
	if err != nil || res.Run != 0 || res.Cached != 7 || runs() != "one two three" {
		t.Errorf("the same again: %+v, %v, %s\n%s", res, err, runs(), log)
	}
	req.Dockerfile = dockerfile("other")
	res, log, err = built(t, r.Client, req, files)
	if err != nil || res.Run != 2 || res.Cached != 5 || runs() != "one two three three" {
		t.Errorf("with another last step: %+v, %v, %s\n%s", res, err, runs(), log)
	}
	req.Args = map[string]string{"WORD": "bye"}
	res, log, err = built(t, r.Client, req, files)
	if err != nil || res.Run != 4 || !strings.HasSuffix(runs(), "one two three") {
		t.Errorf("with another argument: %+v, %v, %s\n%s", res, err, runs(), log)
	}
	hasLines(t, log, "3: bye world in.txt")
	files["in.txt"] = "moon"
	res, log, err = built(t, r.Client, req, files)
	if err != nil || res.Run != 5 || res.Cached != 2 {
		t.Errorf("with another file: %+v, %v\n%s", res, err, log)
	}
	hasLines(t, log, "3: bye moon in.txt")
	before := len(runs())
	req.NoCache = true
	if res, log, err = built(t, r.Client, req, files); err != nil || res.Run != 6 || len(runs()) == before {
		t.Errorf("without the cache: %+v, %v\n%s", res, err, log)
	}
}

// If a build fails, its completed steps are kept, the error names the file and line of the failed
// step, and no sandbox remains.
func TestBuildsThatFail(t *testing.T) {
	r, dir := builder(t)
	text := "FROM a.b\nRUN echo one >> " + dir + "/runs\nRUN echo out; echo bad >&2; exit 3\n"
	req := client.BuildRequest{Tag: "made", Name: "Dockerfile.x", Dockerfile: text}
	for range 2 {
		_, log, err := built(t, r.Client, req, nil)
		if !client.IsStatus(err, http.StatusBadRequest) || !strings.Contains(err.Error(),
			"Dockerfile.x:3: [stage-0 3/3] RUN echo out; echo bad >&2; exit 3: exit status 3") {
			t.Errorf("the error is %v", err)
		}
		hasLines(t, log, "2: out", "2: bad", "2 failed")
	}
	if runs, err := os.ReadFile(dir + "/runs"); err != nil || string(runs) != "one\n" {
		t.Errorf("the step before was carried out more than once: %q, %v", runs, err)
	}
	if list, err := r.Sandboxes(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("sandboxes are left: %v, %v", list, err)
	}
	if _, err := r.Snapshot(t.Context(), "made"); !client.IsNotFound(err) {
		t.Errorf("there is a snapshot: %v", err)
	}
	for _, c := range []struct {
		req  client.BuildRequest
		want string
	}{
		{client.BuildRequest{Tag: "x y", Dockerfile: "FROM a.b"}, "tag"},
		{client.BuildRequest{Tag: "step-" + strings.Repeat("0a", 20), Dockerfile: "FROM a.b"}, "choose another"},
		{client.BuildRequest{Tag: "x"}, "dockerfile"},
		{client.BuildRequest{Tag: "x", Dockerfile: "FROM a.b", VCPUs: 1000}, "vcpus"},
		{client.BuildRequest{Tag: "x", Dockerfile: "FROM a.b", DiskMiB: -1}, "disk_mib"},
		{client.BuildRequest{Tag: "x", Dockerfile: "FROM nowhere:1"}, "Dockerfile:1: nowhere:1"},
		{client.BuildRequest{Tag: "x", Dockerfile: "FROM a.b\nNOPE"}, "Dockerfile:2: unknown instruction"},
		{client.BuildRequest{Tag: "x", Dockerfile: "FROM a.b\nCOPY a /b"}, "the build context has no such file"},
		{client.BuildRequest{Tag: "x", Dockerfile: "FROM a.b\nUSER nosuchuser\nRUN x"}, "nosuchuser"},
	} {
		if _, _, err := built(t, r.Client, c.req, nil); !client.IsStatus(err, http.StatusBadRequest) ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want 400 with %q", c.req, err, c.want)
		}
	}
	if _, _, err := built(t, r.Client, client.BuildRequest{Tag: "a.b", Dockerfile: "FROM a.b"}, nil); !client.IsStatus(
		err,
		http.StatusConflict,
	) {
		t.Errorf("over a snapshot that is there: %v", err)
	}
}

// COPY treats files, owners, modes, links and directories like Docker.
func TestCopies(t *testing.T) {
	r, dir := builder(t)
	text := strings.NewReplacer("DIR", dir).Replace(`FROM a.b AS src
RUN mkdir -p DIR/src/d && echo s > "DIR/src/d/a b" && ln -s d DIR/src/l && chmod 4711 "DIR/src/d/a b"
FROM a.b
RUN mkdir -p DIR/dst/real && ln -s real DIR/dst/alias && echo old > DIR/dst/real/x.txt
COPY x.txt DIR/dst/alias
COPY x.txt DIR/dst/new/name.txt
COPY d DIR/dst/alias/
COPY --chmod=700 d/y.txt x.txt DIR/dst/many/
COPY *.txt DIR/dst/glob/
COPY --parents d/e/z.txt DIR/dst/parents/
COPY --from=src DIR/src/d DIR/dst/from
COPY --from=src DIR/src/* DIR/dst/fromglob/
COPY <<EOF DIR/dst/here
text
EOF
ADD arch.tgz DIR/dst/unpacked/
COPY arch.tgz DIR/dst/packed/
`)
	files := map[string]string{
		"x.txt":     "new",
		"d/y.txt":   "y",
		"d/e/z.txt": "z",
		"d/link":    "link:y.txt",
		"arch.tgz":  tgz(t),
	}
	if _, log, err := built(t, r.Client, client.BuildRequest{Tag: "copied", Dockerfile: text}, files); err != nil {
		t.Fatal(err, "\n", log)
	}
	for name, want := range map[string]string{
		"real/x.txt": "new 640", "new/name.txt": "new 640", "real/y.txt": "y 640", "real/e/z.txt": "z 640",
		"many/y.txt": "y 700", "many/x.txt": "new 700", "glob/x.txt": "new 640", "parents/d/e/z.txt": "z 640",
		"from/a b": "s\n 4711", "fromglob/a b": "s\n 4711", "here": "text\n 644", "unpacked/in/file": "packed 600",
	} {
		path := filepath.Join(dir, "dst", name)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		mode := info.Mode().Perm()
		if info.Mode()&os.ModeSetuid != 0 {
			mode |= 0o4000
		}
		if got := fmt.Sprintf("%s %o", text, mode); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	for name, want := range map[string]string{"alias": "real", "real/link": "y.txt"} {
		if got, err := os.Readlink(filepath.Join(dir, "dst", name)); err != nil || got != want {
			t.Errorf("the link %s leads to %q (%v), want %q", name, got, err, want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "dst/packed/arch.tgz")); err != nil {
		t.Error(err)
	}
}

// If there are too many snapshots of steps, the least recently used ones are removed, even if other
// snapshots are built on them.
func TestStepsAreBounded(t *testing.T) {
	r, _ := builder(t)
	req := client.BuildRequest{Tag: "made", Dockerfile: "FROM a.b\nRUN true\nRUN true 2\nRUN true 3\n", Replace: true}
	steps := func() (n int) {
		list, err := r.Snapshots(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range list {
			if strings.HasPrefix(s.Tag, "step-") {
				n++
			}
		}
		return n
	}
	for _, c := range []struct{ run, kept int }{{4, 3}, {0, 2}} {
		res, log, err := built(t, r.Client, req, nil)
		if err != nil || res.Run != c.run || steps() != 3 {
			t.Fatalf("%+v, %v, %d steps\n%s", res, err, steps(), log)
		}
		r.Steps.Trim(c.kept)
		if n := steps(); n != c.kept {
			t.Errorf("%d steps are left of %d", n, c.kept)
		}
	}
	req.Dockerfile += "RUN true 4\n" // builds on the last step, which still exists; the first step is not needed
	if res, log, err := built(t, r.Client, req, nil); err != nil || res.Run != 2 || res.Cached != 4 {
		t.Errorf("after the first step has gone: %+v, %v\n%s", res, err, log)
	}
	if err := r.DeleteSnapshot(t.Context(), "made", client.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.Steps.Trim(0)
	if n := steps(); n != 0 {
		t.Errorf("%d steps are left of none", n)
	}
	if res, log, err := built(t, r.Client, req, nil); err != nil || res.Run != 5 {
		t.Errorf("after all have gone: %+v, %v\n%s", res, err, log)
	}
}

// tgz returns a compressed archive with one file.
func tgz(t *testing.T) string {
	t.Helper()
	return tgzOf(t, "in/file", "packed")
}

// tgzOf returns a compressed archive with one file. The content "link:TARGET" makes a symbolic
// link.
func tgzOf(t *testing.T, name, content string) string {
	t.Helper()
	var text strings.Builder
	z := gzip.NewWriter(&text)
	out := tar.NewWriter(z)
	h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(content))}
	if link, ok := strings.CutPrefix(content, "link:"); ok {
		h.Typeflag, h.Linkname, h.Size, content = tar.TypeSymlink, link, 0, ""
	}
	if err := out.WriteHeader(h); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Write([]byte(content)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(out.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return text.String()
}

// A single client can take most of the places for builds, but not all of them.
func TestPlacesOfBuilds(t *testing.T) {
	r, _ := builder(t)
	for n := range 3 {
		leave, err := r.Steps.Enter("one")
		if err != nil {
			t.Fatalf("place %d: %v", n, err)
		}
		defer leave()
	}
	if _, err := r.Steps.Enter("one"); err == nil {
		t.Error("one client has all places")
	}
	leave, err := r.Steps.Enter("two")
	if err != nil {
		t.Fatal(err)
	}
	defer leave()
	_, _, err = built(t, r.Client, client.BuildRequest{Tag: "x", Dockerfile: "FROM a.b"}, nil)
	if !client.IsStatus(err, http.StatusServiceUnavailable) {
		t.Errorf("without a place: %v", err)
	}
}

// The steps of a running build are kept, however many newer steps other builds make.
func TestStepsOfARunningBuildAreKept(t *testing.T) {
	r, dir := builder(t)
	done := make(chan error, 1)
	go func() {
		_, log, err := built(t, r.Client, client.BuildRequest{Tag: "made", Dockerfile: fmt.Sprintf(
			"FROM a.b\nRUN true\nRUN touch %[1]s/begun; while [ ! -e %[1]s/go ]; do sleep 0.05; done\n", dir)}, nil)
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, log)
		}
		done <- err
	}()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(dir + "/begun"); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the build does not come to its second command")
		}
	}
	r.Steps.Trim(0) // another build does the same at its end, but keeps 256 steps
	if got := kept(t, r); got != "m" {
		t.Errorf("while the build runs its steps are %q", got)
	}
	if err := os.WriteFile(dir+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	r.Steps.Trim(0)
	if got := kept(t, r); got != "" {
		t.Errorf("after the build its steps are %q", got)
	}
}

// While a build makes a tag, a second build with this tag is refused. The refusal is not logged as
// a failure of the daemon.
func TestTwoBuildsOfATag(t *testing.T) {
	r, _ := builder(t)
	ctx, cancel := context.WithCancel(t.Context())
	begun, done := make(chan struct{}), make(chan error)
	go func() {
		_, err := r.Client.Build(ctx, client.BuildRequest{Tag: "one", Dockerfile: "FROM a.b\nRUN exec sleep 600\n"}, nil,
			func(e client.BuildEvent) error {
				if e.Step != nil && e.Step.State == "started" {
					close(begun)
				}
				return nil
			})
		done <- err
	}()
	<-begun
	_, _, err := built(t, r.Client, client.BuildRequest{Tag: "one", Dockerfile: "FROM a.b"}, nil)
	if !errors.Is(err, client.ErrConflict) || !strings.Contains(err.Error(), "tag one: another build is at it") {
		t.Errorf("%v", err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the first: %v", err)
	}
	for left, deadline := 1, time.Now().Add(10*time.Second); left > 0; time.Sleep(20 * time.Millisecond) {
		list, err := r.Sandboxes(t.Context())
		if left = len(list); err != nil || left > 0 && time.Now().After(deadline) {
			t.Fatalf("the build goes on without its client: %v, %v", list, err)
		}
	}
}

// A build from an image boots the image once, and runs with the image's settings.
func TestBuildFromAnImage(t *testing.T) {
	r := start(t, apirig.Options{})
	req := client.BuildRequest{Tag: "made", Dockerfile: "FROM " + apirig.Image + "\nRUN echo $OF in $(pwd)\n",
		Replace: true, VCPUs: 2, MemoryMiB: 256}
	res, log, err := built(t, r.Client, req, nil)
	if err != nil || res.Run != 3 || res.Cached != 0 {
		t.Fatalf("%+v, %v\n%s", res, err, log)
	}
	hasLines(t, log, "0: boot", "1: image in /usr")
	d, err := r.Snapshot(t.Context(), "made")
	if err != nil || d.VCPUs != 2 || d.MemSizeMiB != 256 {
		t.Errorf("the snapshot is %+v, %v", d, err)
	}
	req.Dockerfile += "RUN echo more\n"
	if res, log, err = built(t, r.Client, req, nil); err != nil || res.Run != 2 || res.Cached != 2 {
		t.Errorf("with a further step: %+v, %v\n%s", res, err, log)
	}
	req.MemoryMiB = 512
	if res, log, err = built(t, r.Client, req, nil); err != nil || res.Run != 4 {
		t.Errorf("with more memory: %+v, %v\n%s", res, err, log)
	}
}
