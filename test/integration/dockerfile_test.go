package integration_test

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/client"
)

// buildFile builds from a Dockerfile and returns the result and the lines of the events.
func (d *daemon) buildFile(ctx context.Context, req client.BuildRequest, files map[string]string) (client.BuildResult,
	string, error) {
	var log strings.Builder
	r, err := d.Build(ctx, req, func(out *tar.Writer) error {
		for name, content := range files {
			h := &tar.Header{Name: v1.BuildContext + name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))}
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
			fmt.Fprintf(&log, "%s\n", strings.Join(e.Plan.Steps, "\n"))
		case e.Step != nil:
			fmt.Fprintf(&log, "#%d %s %.0f ms\n", e.Step.Number, e.Step.State, e.Step.MS)
		case e.Output != nil:
			fmt.Fprintf(&log, "#%d %s\n", e.Output.Number, e.Output.Line)
		}
		return nil
	})
	return r, log.String(), err
}

// dropBuilt removes a snapshot and the snapshots of its steps, so that later builds repeat the
// steps.
func (d *daemon) dropBuilt(t *testing.T, tag string) {
	t.Helper()
	list, err := d.Snapshots(d.ctx(t, quietLimit))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		if s.Tag != tag && !strings.HasPrefix(s.Tag, "step-") {
			continue
		}
		if err := d.DeleteSnapshot(d.ctx(t, quietLimit), s.Tag, client.DeleteOptions{Force: true}); err != nil {
			t.Error(err)
		}
	}
}

// TestDockerfile builds stages with mounts, a secret, a here-document, arguments and a warm step in
// VMs. Forks of the result have the files, the settings and the running process. No file on the
// host contains the secret. The next build uses every step again.
func TestDockerfile(t *testing.T) {
	d := load(t).start(t)
	random := strings.ToLower(rand.Text())
	secret, onDisk, inMemory := "secret"+random, "disk.."+random, "memory"+random
	text := strings.NewReplacer("TAG", tag, "RANDOM", random).Replace(`FROM TAG AS build
ARG WHO=nobody
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/cache,id=c <<EOF
set -e
echo $WHO $(ls) > /list
echo run >> /cache/runs
grep -c run /cache/runs > /count
EOF
RUN sleep 1234 & touch /left; printf disk..%s RANDOM > /disk
RUN --mount=type=secret,id=s,target=/etc/deep/s,required --mount=type=secret,id=s,env=S <<EOF
set -e
test "$S" = "$(cat /etc/deep/s)"
stat -c %a%s /etc/deep/s > /size
! touch /etc/deep/s
EOF
FROM TAG
COPY --from=build --chown=1234:5678 /list /count /out/
COPY --from=build /left /disk /size /
RUN --mount=type=tmpfs,target=/t --mount=type=bind,from=build,source=/src,target=/b ls /b > /out/bound && echo x > /t/x && ! touch /b/x
ENV MODE=warm
WORKDIR /out
# forkd: warm printf memory%s RANDOM > /dev/shm/word; echo $$ > /run/warm.pid; exec sleep 4321
# forkd: probe test -s /run/warm.pid
`)
	files := map[string]string{"a.txt": "a", "b/c.txt": "c"}
	req := client.BuildRequest{Tag: "app", Dockerfile: text, Replace: true, Args: map[string]string{"WHO": "somebody"}}
	begin := time.Now().Add(-time.Second) // file times have a lower resolution than time.Now
	d.buildByProgram(t, text, secret, files)
	if found := d.search(t, begin, secret, onDisk, inMemory); found[secret] || !found[onDisk] || !found[inMemory] {
		t.Errorf("of the secret and what a disk and a memory have, the daemon's files have %v", found)
	}
	const look = `cat /out/list /out/count /out/bound /size; stat -c %u:%g /out/list /left; pwd; echo $MODE
ls -A /t /b /cache /etc/deep 2>/dev/null; cat /dev/shm/word; echo
tr '\0' ' ' < /proc/$(cat /run/warm.pid)/cmdline; echo; grep -lxz 123[4] /proc/[0-9]*/cmdline; ls -A /var/tmp; true`
	box := d.forkOf(t, "app", 1)[0]
	want := fmt.Sprintf("somebody a.txt b\n1\na.txt\nb\n400%d\n1234:5678\n0:0\n/out\nwarm\n%s\nsleep 4321 \n",
		len(secret), inMemory)
	if got := d.sh(t, box.ID, look); got != want {
		t.Errorf("a fork has %q, want %q", got, want)
	}
	d.kill(t, box)
	r, log, err := d.buildFile(d.ctx(t, 2*bakeLimit), req, files)
	if err != nil || r.Run != 0 || r.Cached != 12 {
		t.Errorf("the same again: %+v, %v\n%s", r, err, log)
	}
	// Run only the first steps again, without the cache of steps. The cache mount keeps its content.
	req.NoCache = true
	req.Dockerfile, _, _ = strings.Cut(text, "RUN sleep")
	if r, log, err = d.buildFile(d.ctx(t, 2*bakeLimit), req, files); err != nil || r.Run < 2 {
		t.Fatalf("without the cache: %+v, %v\n%s", r, err, log)
	}
	again := d.forkOf(t, "app", 1)[0]
	if got := d.sh(t, again.ID, "cat /list /count"); got != "somebody a.txt b\n2\n" {
		t.Errorf("without the cache, a fork has %q", got)
	}
	d.kill(t, again)
	d.dropBuilt(t, "app")
}

// buildByProgram builds the tag app with the program forkd. The context of the build has a file that
// .dockerignore excludes.
func (d *daemon) buildByProgram(t *testing.T, text, secret string, files map[string]string) {
	t.Helper()
	dir, other := t.TempDir(), t.TempDir()
	write := func(path, content string) {
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644))
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range files {
		write(filepath.Join(dir, name), content)
	}
	write(filepath.Join(dir, "out"), "left out")
	write(filepath.Join(dir, ".dockerignore"), "out\n.dock*\n")
	write(filepath.Join(other, "Dockerfile"), text)
	write(filepath.Join(other, "key"), secret)
	out, log := d.cli(t, 0, "build", "-f", filepath.Join(other, "Dockerfile"), "-t", "app", "--progress", "plain",
		"--build-arg", "WHO=somebody", "--secret", "id=s,src="+filepath.Join(other, "key"), dir)
	t.Logf("%s\n%s", out, log)
	if !strings.HasPrefix(out, "app: 11 steps done, 1 cached, ") {
		t.Errorf("the first build: %s", out)
	}
}

// TestDaemonCrashWhileBuildingADockerfile kills the daemon while a step runs. The next daemon kills
// the sandbox of the build and has no snapshot of the incomplete step. A second build continues
// after the last complete step. The stage has a secret mount, so snapshots of its steps have no
// memory. The result boots, and has the files that the steps have written, although the steps have
// not synced these files.
func TestDaemonCrashWhileBuildingADockerfile(t *testing.T) {
	d := load(t).start(t)
	text := "FROM " + tag + "\nRUN --mount=type=secret,id=none echo one | tee /one /dev/shm/mark\n" +
		"RUN cat /dev/shm/mark > /two; echo 2 >> /two\nRUN touch /begun; sleep %d; cat /one >> /two\n"
	req := client.BuildRequest{Tag: "crashed", Dockerfile: fmt.Sprintf(text, 1000)}
	ended := make(chan error, 1)
	ctx := d.ctx(t, 2*bakeLimit)
	go func() {
		_, _, err := d.buildFile(ctx, req, nil)
		ended <- err
	}()
	eventually(t, bakeLimit, func() error {
		select {
		case err := <-ended:
			t.Fatalf("the build has ended: %v", err)
		default:
		}
		list, err := d.Sandboxes(d.ctx(t, quietLimit))
		if err != nil || len(list) != 1 {
			return fmt.Errorf("%d sandboxes, %v", len(list), err)
		}
		r, err := d.Exec(d.ctx(t, quietLimit), list[0].ID, client.ExecRequest{Args: []string{"test", "-e", "/begun"}})
		if err != nil || r.ExitCode != 0 {
			return fmt.Errorf("the step has not begun: %+v, %v", r, err)
		}
		return nil
	})
	d.crash(t)
	if err := <-ended; err == nil {
		t.Error("the build has a result although its daemon was killed")
	}
	d.launch(t)
	eventually(t, quietLimit, func() error {
		list, err := d.Sandboxes(d.ctx(t, quietLimit))
		if err != nil || len(list) != 0 {
			return fmt.Errorf("%d sandboxes, %v", len(list), err)
		}
		return nil
	})
	if _, err := d.Snapshot(d.ctx(t, quietLimit), "crashed"); !client.IsNotFound(err) {
		t.Errorf("there is a result: %v", err)
	}
	req.Dockerfile = fmt.Sprintf(text, 0)
	r, log, err := d.buildFile(d.ctx(t, 2*bakeLimit), req, nil)
	if err != nil || r.Cached != 3 || r.Run != 2 {
		t.Fatalf("the next build: %+v, %v\n%s", r, err, log)
	}
	box := d.forkOf(t, "crashed", 1)[0].ID
	if got := d.sh(t, box, "cat /two; [ -e /dev/shm/mark ] || echo booted"); got != "2\none\nbooted\n" {
		t.Errorf("a fork has %q", got)
	}
	if err := d.Kill(d.ctx(t, quietLimit), box); err != nil {
		t.Error(err)
	}
	d.dropBuilt(t, "crashed")
}
