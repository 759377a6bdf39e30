package integration_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/test/torture/guest"
)

// baseTag is the snapshot in which the guest program is running. All other snapshots descend from
// it.
const baseTag = "base"

// guestSize is small, because these tests are about the daemon and not about large guests.
var guestSize = guest.Size{MemoryMiB: 8, DiskMiB: 1, CPUs: 1}

// stepLimit bounds every request. It is long because an emulated host may be busy. A request that
// takes longer fails the test.
const stepLimit = 2 * time.Minute

// makeBase bakes a parent, starts the guest program in a child of it, and makes a snapshot of the
// child: the base. Half of the blocks are on a volume, and every descendant of the base gets a copy
// of this volume.
func (x *fire) makeBase() {
	x.t.Helper()
	f := x.d.f
	err := x.d.bake(x.t, client.BakeRequest{
		Tag: "bare", Kernel: f.assets.Minimal.VMLinux, Initrd: f.assets.Minimal.Initrd,
		Rootfs: filepath.Join(f.assets.Images["base"], "rootfs.ext4"), MemSizeMiB: 128, VCPUs: uint32(guestSize.CPUs),
		VolumeSlots: 1,
	})
	if err != nil {
		x.t.Fatal(err)
	}
	_, err = x.d.CreateVolume(x.d.ctx(x.t, stepLimit), client.VolumeRequest{Name: "blocks", SizeMiB: 16})
	x.fail(err)
	list, err := x.forkN(client.ForkRequest{SnapshotTag: "bare", N: 1,
		Volumes: []client.VolumeMount{{Name: "blocks", Path: guest.Volume}}})
	x.fail(err)
	s := list[0]
	program, err := os.ReadFile(f.assets.Torture)
	if err == nil {
		err = x.d.WriteFile(x.d.ctx(x.t, stepLimit), s.ID, guest.Program, bytes.NewReader(program))
	}
	if err != nil {
		x.t.Fatal(err)
	}
	x.d.sh(x.t, s.ID, guestSize.StartOn())
	p := x.mark(s.ID)
	made, err := x.branch(s.ID, baseTag, client.BranchRequest{Mode: "full"})
	x.fail(err)
	x.took(made, p)
	x.d.kill(x.t, s)
	x.fail(x.d.DeleteVolume(x.d.ctx(x.t, stepLimit), "blocks")) // the snapshot keeps its data
	x.delete("bare", client.DeleteOptions{Force: true})
	x.check(baseTag)
}

// ask sends a request to the guest program of a sandbox. If the program reports damage, ask returns
// an error.
func (x *fire) ask(id string, words ...string) (guest.Report, error) {
	var r guest.Report
	res, err := x.d.Exec(x.d.ctx(x.t, stepLimit), id, client.ExecRequest{
		Args: append([]string{guest.Program, "ask", guest.Socket}, words...), TimeoutSecs: 90,
	})
	if err != nil {
		return r, fmt.Errorf("ask sandbox %s: %w; %s", id, err, x.autopsy(id))
	}
	if res.ExitCode != 0 || res.Error != "" {
		return r, fmt.Errorf("ask sandbox %s: %+v; %s", id, res, x.autopsy(id))
	}
	if err := json.Unmarshal([]byte(res.Stdout), &r); err != nil {
		return r, fmt.Errorf("ask sandbox %s: %w: %s", id, err, res.Stdout)
	}
	return r, inSandbox(id, r.Damage())
}

// fail counts damage, and ends the test for any other error.
func (x *fire) fail(err error) {
	x.t.Helper()
	if err == nil {
		return
	}
	x.report.Fail(err)
	x.t.Fatal(err)
}

// hot chooses at random how many units a sandbox writes: all units, 64 of each writer, or one of each writer.
func (x *fire) hot() []string {
	return []string{"hot", []string{"0", "0", "1", "64"}[x.rng.IntN(4)]}
}

// mark sets a new, unique mark in a sandbox. The snapshots of the sandbox contain it until the next
// mark is set.
func (x *fire) mark(id string, words ...string) point {
	x.t.Helper()
	x.names++
	p := point{Instant: guest.Instant{Mark: uint64(x.names)}}
	r, err := x.ask(id, append(words, "mark", fmt.Sprint(p.Mark))...)
	x.fail(err)
	p.Seq = r.Seq
	return p
}

// branch makes a snapshot of a sandbox and counts it. It checks that the snapshot has the requested
// mode.
func (x *fire) branch(id, tag string, req client.BranchRequest) (client.Snapshot, error) {
	req.Tag = tag
	s, err := x.d.Branch(x.d.ctx(x.t, stepLimit), id, req)
	if err != nil {
		return s, fmt.Errorf("%s branch of %s: %w", req.Mode, id, err)
	}
	want := "ready"
	if req.NoWait {
		want = "writing"
	}
	if s.Mode != req.Mode || s.Status != want || s.Tag != tag {
		return s, fmt.Errorf("%s branch of %s: %+v", req.Mode, id, s)
	}
	if !req.NoWait {
		x.branched(s)
	}
	return s, nil
}

// branched counts a complete branch.
func (x *fire) branched(s client.Snapshot) {
	var faults uint64
	if s.Faults != nil {
		faults = *s.Faults
	}
	x.report.Branched(s.Mode, faults)
}

// took(s, p) records the instant of a complete snapshot.
func (x *fire) took(s client.Snapshot, p point) {
	x.t.Helper()
	d, err := x.d.Snapshot(x.d.ctx(x.t, stepLimit), s.Tag)
	x.fail(err)
	p.depth = d.MemoryLayers - 1
	x.points[s.Tag] = p
	x.report.Reached(p.depth)
}

// latest(tag) records the tag of a snapshot to which later rounds roll the source back. It removes
// the previous snapshot of this kind, unless the source runs from it.
func (x *fire) latest(tag string) {
	x.t.Helper()
	old := x.last
	x.last = tag
	if old != baseTag && old != x.source.SnapshotTag {
		x.delete(old, client.DeleteOptions{})
	}
}

// delete removes a snapshot. The removal must succeed.
func (x *fire) delete(tag string, opts client.DeleteOptions) {
	x.t.Helper()
	if err := x.d.DeleteSnapshot(x.d.ctx(x.t, stepLimit), tag, opts); err != nil {
		x.t.Fatalf("remove snapshot %s: %v", tag, err)
	}
	delete(x.points, tag)
	x.report.Count(&x.report.Removals)
}

// fork starts a child.
func (x *fire) fork(tag string) client.Sandbox {
	x.t.Helper()
	list, err := x.forkN(client.ForkRequest{SnapshotTag: tag, N: 1})
	x.fail(err)
	return list[0]
}

func (x *fire) forkN(req client.ForkRequest) ([]client.Sandbox, error) {
	r, err := x.d.Fork(x.d.ctx(x.t, stepLimit), req)
	if err != nil {
		return nil, fmt.Errorf("fork %d of %s%s: %w", req.N, req.SnapshotTag, req.SourceID, err)
	}
	return r.Sandboxes, nil
}

// verifyCopy checks that the sandbox with the given id is a copy of the source at the instant p,
// and that the copy has continued since then. The sandbox must not have received other requests.
func (x *fire) verifyCopy(id string, p point) error {
	r, err := x.ask(id, "verify")
	if err != nil {
		return err
	}
	return inSandbox(id, r.Check(p.Instant, guestSize))
}

func inSandbox(id string, err error) error {
	if err != nil {
		return fmt.Errorf("sandbox %s: %w", id, err)
	}
	return nil
}

// verifyMarked gives the source a new mark and checks the source.
func (x *fire) verifyMarked() {
	x.t.Helper()
	x.names++
	p := point{Instant: guest.Instant{Mark: uint64(x.names)}}
	r, err := x.ask(x.source.ID, "mark", fmt.Sprint(p.Mark), "verify")
	x.fail(err)
	x.fail(inSandbox(x.source.ID, r.Check(p.Instant, guestSize)))
	x.report.Count(&x.report.SourcesVerified)
}

// verifySource checks the source. Its latest mark must be the mark of p.
func (x *fire) verifySource(p point) {
	x.t.Helper()
	x.fail(x.verifyCopy(x.source.ID, p))
	x.report.Count(&x.report.SourcesVerified)
}

// verifyChildren checks that children are copies of the source at the instant p, and kills the
// children. It lets only one of them run at a time.
func (x *fire) verifyChildren(list []client.Sandbox, p point) error {
	for _, s := range list[1:] {
		if _, err := x.d.Pause(x.d.ctx(x.t, stepLimit), s.ID); err != nil {
			return err
		}
	}
	for i, s := range list {
		if i > 0 {
			if _, err := x.d.Resume(x.d.ctx(x.t, stepLimit), s.ID); err != nil {
				return err
			}
		}
		if err := x.verifyCopy(s.ID, p); err != nil {
			return err
		}
		x.report.Count(&x.report.ChildrenVerified)
		if err := x.d.Kill(x.d.ctx(x.t, stepLimit), s.ID); err != nil {
			return err
		}
	}
	return nil
}

// checkSnapshot verifies a child of a snapshot.
func (x *fire) checkSnapshot(tag string) error {
	list, err := x.forkN(client.ForkRequest{SnapshotTag: tag, N: 1})
	if err == nil {
		err = x.verifyChildren(list, x.points[tag])
	}
	if err != nil {
		return fmt.Errorf("child of snapshot %s: %w", tag, err)
	}
	return nil
}

func (x *fire) check(tag string) {
	x.t.Helper()
	x.fail(x.checkSnapshot(tag))
}

// checkAll verifies a child of every snapshot. It also checks that the daemon lists no other
// snapshots, except the saved states of suspended sandboxes.
func (x *fire) checkAll() {
	x.t.Helper()
	list, err := x.d.Snapshots(x.d.ctx(x.t, stepLimit))
	x.fail(err)
	var tags []string
	for _, s := range list {
		if s.Transient {
			continue // the snapshot was deleted together with its sandbox
		}
		if _, known := x.points[s.Tag]; !known || s.Status != "ready" {
			x.t.Fatalf("snapshot that is listed: %+v", s)
		}
		tags = append(tags, s.Tag)
	}
	if len(tags) != len(x.points) {
		x.t.Fatalf("snapshots %v are listed, want %v", tags, slices.Sorted(maps.Keys(x.points)))
	}
	for _, tag := range tags {
		x.check(tag)
	}
}

// verifyFiles compares the files of a snapshot, and its base image, with their digests. The
// comparison takes minutes on an emulated host, so only a long run makes it, and rarely.
func (x *fire) verifyFiles(tag string) {
	x.t.Helper()
	if x.long && x.rng.IntN(4) == 0 {
		x.fail(x.d.VerifySnapshot(x.d.ctx(x.t, 10*time.Minute), tag))
	}
}

// still(f) pauses the source while f runs, so that children get all of an emulated host's CPU.
func (x *fire) still(f func()) {
	x.t.Helper()
	if s, err := x.d.Pause(x.d.ctx(x.t, stepLimit), x.source.ID); err != nil || s.State != "paused" {
		x.t.Fatalf("pause: %+v, %v", s, err)
	}
	f()
	if s, err := x.d.Resume(x.d.ctx(x.t, stepLimit), x.source.ID); err != nil || s.State != "running" {
		x.t.Fatalf("resume: %+v, %v", s, err)
	}
}
