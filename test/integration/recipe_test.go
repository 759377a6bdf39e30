package integration_test

import (
	"archive/tar"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/client"
)

// TestRecipe builds a recipe in VMs. Forks of the result have the recipe's files, variables and
// network. They also have the memory contents of the warm-up and the process that it started. A
// repeated build finds every step in the cache. After a change of the limits, only the last step
// runs.
func TestRecipe(t *testing.T) {
	d := load(t).start(t)
	const recipe = `name: small
base: debian:bookworm
files:
  - {source: src, target: /srv/src}
  - {source: src/hello.sh, target: /usr/local/bin/hello}
env: {WHO: recipe}
warmup:
  start: printf memory > /dev/shm/word; echo $$ > /run/warm.pid; exec sleep 4321
  probe: test -s /run/warm.pid
  commands:
    - hello > /greeting
  python: |
    import os, sys
    sys.path.insert(0, "/srv/src")
    import small
    answer = small.double(21), os.environ["WHO"]
network: none
memory_mib: 192
volume_slots: 1
`
	files := map[string]string{"src/hello.sh": "#!/bin/sh\necho \"hello $WHO\"\n",
		"src/small.py": "def double(n):\n    return 2 * n\n"}
	pack := func(out *tar.Writer) error {
		for name, content := range files {
			h := &tar.Header{Name: v1.BuildContext + name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(content))}
			if err := out.WriteHeader(h); err != nil {
				return err
			}
			if _, err := out.Write([]byte(content)); err != nil {
				return err
			}
		}
		return nil
	}
	req := client.BuildRequest{Tag: "small", Recipe: recipe, Replace: true, Boot: &client.BuildBoot{
		Kernel: d.f.kernel.VMLinux, Initrd: d.f.kernel.Initrd,
		Rootfs: filepath.Join(d.f.assets.Images["python-numpy"], "rootfs.ext4")}}
	build := func(run, cached int) {
		t.Helper()
		var log strings.Builder
		r, err := d.Build(d.ctx(t, 2*bakeLimit), req, pack, func(e client.BuildEvent) error {
			if e.Step != nil {
				fmt.Fprintf(&log, "#%d %s %.0f ms\n", e.Step.Number, e.Step.State, e.Step.MS)
			} else if e.Output != nil {
				fmt.Fprintf(&log, "#%d %s\n", e.Output.Number, e.Output.Line)
			}
			return nil
		})
		t.Logf("%+v\n%s", r, &log)
		if err != nil || r.Run != run || r.Cached != cached {
			t.Fatalf("%+v, %v, want %d done and %d cached", r, err, run, cached)
		}
	}
	see := func() {
		t.Helper()
		for _, box := range d.forkOf(t, "small", 2) {
			const look = `cat /greeting /dev/shm/word; echo; tr '\0' ' ' < /proc/$(cat /run/warm.pid)/cmdline; echo; echo $WHO`
			want := "hello recipe\nmemory\nsleep 4321 \nrecipe\n"
			if got := d.sh(t, box.ID, look); got != want {
				t.Errorf("a fork has %q, want %q", got, want)
			}
			if got := d.value(t, box.ID, "answer"); got != "(42, 'recipe')" {
				t.Errorf("the warm interpreter has %s", got)
			}
			if box.Network != "none" {
				t.Errorf("the network is %q", box.Network)
			}
			if err := d.Kill(d.ctx(t, quietLimit), box.ID); err != nil {
				t.Error(err)
			}
		}
	}
	build(8, 0)
	see()
	build(0, 8)
	req.Limits = &client.Limits{CPUWeight: 50}
	build(1, 7)
	see()
	d.mountedInWarm(t, "small")
	d.dropBuilt(t, "small")
}

// mountedInWarm mounts a volume in a child of a warm snapshot whose recipe has a volume slot.
func (d *daemon) mountedInWarm(t *testing.T, tag string) {
	t.Helper()
	if _, err := d.CreateVolume(d.ctx(t, quietLimit), client.VolumeRequest{Name: "warm", SizeMiB: 16}); err != nil {
		t.Fatal(err)
	}
	f, err := d.Fork(d.ctx(t, bakeLimit), client.ForkRequest{SnapshotTag: tag, N: 1,
		Volumes: []client.VolumeMount{{Name: "warm", Path: "/data"}}})
	if err != nil {
		t.Fatal(err)
	}
	id := f.Sandboxes[0].ID
	if got := d.sh(t, id, "echo kept >/data/x && grep -c ' /data ' /proc/mounts"); got != "1\n" {
		t.Errorf("mounts of /data: %q", got)
	}
	if got := d.value(t, id, "answer"); got != "(42, 'recipe')" {
		t.Errorf("the warm interpreter has %s", got)
	}
	d.kill(t, f.Sandboxes...)
	if err := d.DeleteVolume(d.ctx(t, quietLimit), "warm"); err != nil {
		t.Error(err)
	}
}
