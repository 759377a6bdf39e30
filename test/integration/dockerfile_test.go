package integration_test

import (
	"archive/tar"
	"context"
	"fmt"
	"strings"
	"testing"

	v1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/client"
)

// buildFile builds from a Dockerfile and returns the result and the events as lines.
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

// dropBuilt removes a snapshot and those of steps, so that tests that follow find none of them.
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

// TestDockerfile builds stages with mounts, a here-document, arguments and a warm step in VMs: forks of
// the result have the files, the settings and the running process, and the next build finds every step.
func TestDockerfile(t *testing.T) {
	d := load(t).start(t)
	text := strings.ReplaceAll(`FROM TAG AS build
ARG WHO=nobody
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/cache,id=c <<EOF
set -e
echo $WHO $(ls) > /list
echo run >> /cache/runs
grep -c run /cache/runs > /count
EOF
RUN sleep 1234 & touch /left
FROM TAG
COPY --from=build --chown=1234:5678 /list /count /out/
COPY --from=build /left /left
RUN --mount=type=tmpfs,target=/t --mount=type=bind,from=build,source=/src,target=/b ls /b > /out/bound && echo x > /t/x && ! touch /b/x
ENV MODE=warm
WORKDIR /out
# forkd: warm echo $$ > /run/warm.pid; exec sleep 4321
# forkd: probe test -s /run/warm.pid
`, "TAG", tag)
	files := map[string]string{"a.txt": "a", "b/c.txt": "c"}
	req := client.BuildRequest{Tag: "app", Dockerfile: text, Replace: true, Args: map[string]string{"WHO": "somebody"}}
	r, log, err := d.buildFile(d.ctx(t, 2*bakeLimit), req, files)
	t.Logf("%+v\n%s", r, log)
	if err != nil {
		t.Fatal(err)
	}
	if r.Run != 10 || r.Cached != 1 {
		t.Errorf("the first build: %+v", r)
	}
	const look = `cat /out/list /out/count /out/bound; stat -c %u:%g /out/list /left; pwd; echo $MODE; ls -A /t /b /cache 2>/dev/null
tr '\0' ' ' < /proc/$(cat /run/warm.pid)/cmdline; echo; grep -lxz 123[4] /proc/[0-9]*/cmdline; ls -A /var/tmp; true`
	see := func(want string) {
		t.Helper()
		made, err := d.Fork(d.ctx(t, bakeLimit), client.ForkRequest{SnapshotTag: "app", N: 1})
		if err != nil {
			t.Fatal(err)
		}
		id := made.Sandboxes[0].ID
		e, err := d.Exec(d.ctx(t, quietLimit), id, client.ExecRequest{Args: []string{"sh", "-c", look}})
		if err != nil || e.Stdout != want {
			t.Errorf("a fork has %q, %v, want %q (stderr %s)", e.Stdout, err, want, e.Stderr)
		}
		if err := d.Kill(d.ctx(t, quietLimit), id); err != nil {
			t.Error(err)
		}
	}
	want := "somebody a.txt b\n%d\na.txt\nb\n1234:5678\n0:0\n/out\nwarm\n/b:\n\n/t:\nsleep 4321 \n"
	see(fmt.Sprintf(want, 1))
	if r, log, err = d.buildFile(d.ctx(t, 2*bakeLimit), req, files); err != nil || r.Run != 0 || r.Cached != 11 {
		t.Errorf("the same again: %+v, %v\n%s", r, err, log)
	}
	req.NoCache = true // but with what the cache mount holds
	if r, log, err = d.buildFile(d.ctx(t, 2*bakeLimit), req, files); err != nil || r.Run != 10 {
		t.Fatalf("without the cache: %+v, %v\n%s", r, err, log)
	}
	see(fmt.Sprintf(want, 2))
	d.dropBuilt(t, "app")
}

// TestDaemonCrashWhileBuildingADockerfile kills the daemon while a step runs: the next daemon ends the
// sandbox of the build, has no half-made step, and the build goes on from the step before.
func TestDaemonCrashWhileBuildingADockerfile(t *testing.T) {
	d := load(t).start(t)
	text := "FROM " + tag + "\nRUN echo one > /one\nRUN touch /begun; sleep %d; cat /one > /two\n"
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
	if err != nil || r.Cached != 2 || r.Run != 2 {
		t.Errorf("the next build: %+v, %v\n%s", r, err, log)
	}
	d.dropBuilt(t, "crashed")
}
