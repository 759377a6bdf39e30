package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/forkd/forkd/bench/internal/report"
	"github.com/forkd/forkd/internal/host/hub"
)

// mover is a program that moves snapshots. A repository is named REGISTRY/NAME. A snapshot has the
// same tag in a repository as in the store.
type mover interface {
	name() string
	push(ctx context.Context, tag, repo string) error
	pull(ctx context.Context, repo, tag, as string) error
	copy(ctx context.Context, from, to, tag string) error
	settle(ctx context.Context) error // waits for work that continues after an operation
	close()
}

// operation is a row of the table.
type operation struct {
	what, program, snapshot string
	times                   []time.Duration
	sent, received          []float64 // MiB
}

// run measures an operation. The registries count the bytes.
func (b *bench) run(what, program, snapshot string, registries []*server, f func() error) error {
	var o *operation
	for _, known := range b.ops {
		if known.what == what && known.program == program && known.snapshot == snapshot {
			o = known
		}
	}
	if o == nil {
		o = &operation{what: what, program: program, snapshot: snapshot}
		b.ops = append(b.ops, o)
	}
	for _, r := range registries {
		r.received.Store(0)
		r.sent.Store(0)
	}
	begin := time.Now()
	if err := f(); err != nil {
		return fmt.Errorf("%s with %s: %w", what, program, err)
	}
	o.times = append(o.times, time.Since(begin))
	var sent, received int64
	for _, r := range registries {
		sent += r.received.Load()
		received += r.sent.Load()
	}
	o.sent, o.received = append(o.sent, float64(sent)/(1<<20)), append(o.received, float64(received)/(1<<20))
	return nil
}

// The snapshots, in the order in which they are moved. The child is moved a second time at the end.
var snapshots = []struct{ tag, as, what string }{
	{"parent", "parent", "parent"}, {"child", "child", "child, after the parent"}, {"child", "again", "child, again"},
}

// pack writes the archives of the snapshots. It measures the packing only in the first round,
// because later the compressed files are in the hub's cache.
func (b *bench) pack(ctx context.Context) error {
	for _, s := range snapshots[:2] {
		if b.archives[s.tag] != "" {
			continue
		}
		path := filepath.Join(b.dir, s.tag+".tar")
		err := b.run("pack", "forkd", s.what, nil, func() error { return b.home.packTo(ctx, s.tag, path) })
		if err != nil {
			return err
		}
		if err := b.run("copy of the archive", "cp", s.what, nil, func() error {
			return plainCopy(path, path+".copy")
		}); err != nil {
			return err
		}
		b.archives[s.tag] = path
	}
	return nil
}

// plainCopy copies a file, and waits until the copy is on disk.
func plainCopy(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Sync(), out.Close(), os.Remove(to))
}

// moveAll pushes, pulls and copies the snapshots with one program and two new registries.
func (b *bench) moveAll(ctx context.Context, newMover func(dir string) mover) (err error) {
	dir, err := os.MkdirTemp(b.dir, "round-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	m := newMover(dir)
	defer m.close()
	var both []*server
	for _, name := range []string{"a", "b"} {
		r, err := startRegistry(ctx, filepath.Join(dir, name))
		if err != nil {
			return err
		}
		defer r.stop()
		both = append(both, r)
	}
	from, to := both[0].host+"/bench/from", both[1].host+"/bench/to"
	for _, s := range snapshots {
		if err := b.run("push", m.name(), s.what, both, func() error { return m.push(ctx, s.tag, from) }); err != nil {
			return err
		}
	}
	for _, s := range snapshots {
		pull := func() error { return m.pull(ctx, from, s.tag, s.as) }
		if err := b.run("pull", m.name(), s.what, both, pull); err != nil {
			return err
		}
		if err := m.settle(ctx); err != nil {
			return err
		}
	}
	for _, s := range snapshots {
		again := func() error { return m.copy(ctx, from, to, s.tag) }
		if err := b.run("copy", m.name(), s.what, both, again); err != nil {
			return err
		}
	}
	return nil
}

// forkd moves snapshots as a daemon does.
type forkd struct {
	*bench
	dir   string
	other *host // receives the pulled snapshots
}

func (f *forkd) name() string { return "forkd" }

func (f *forkd) close() {
	if f.other != nil {
		f.other.close()
	}
}

// settle waits until the pulled snapshots are on disk and sealed. Only then do later pulls share their layers.
func (f *forkd) settle(ctx context.Context) error {
	for _, i := range f.other.store.List() {
		err := f.other.store.WaitFlushed(ctx, i.Tag)
		if err == nil {
			err = f.other.store.Verify(ctx, i.Tag) // seals the snapshot, as the store does in the background
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func ignore(hub.Progress) {}

func (f *forkd) push(ctx context.Context, tag, repo string) error {
	to, err := hub.ParseRemote("to", repo+":"+tag)
	if err != nil {
		return err
	}
	_, err = f.home.hub.Push(ctx, "bench", tag, to, false, ignore)
	return err
}

func (f *forkd) pull(ctx context.Context, repo, tag, as string) error {
	from, err := hub.ParseRemote("from", repo+":"+tag)
	if err != nil {
		return err
	}
	if f.other == nil {
		if f.other, err = newHost(filepath.Join(f.dir, "other")); err != nil {
			return err
		}
	}
	_, err = f.other.hub.Pull(ctx, "bench", as, from.Under(hub.Off), ignore)
	return err
}

func (f *forkd) copy(ctx context.Context, from, to, tag string) error {
	source, err := hub.ParseRemote("from", from+":"+tag)
	if err != nil {
		return err
	}
	target, err := hub.ParseRemote("to", to+":"+tag)
	if err != nil {
		return err
	}
	_, err = f.home.hub.Copy(ctx, "bench", source.Under(hub.Off), target, ignore)
	return err
}

// skopeo moves the archives of forkd. It compresses and decompresses nothing.
type skopeo struct {
	*bench
	dir string
}

func (s *skopeo) name() string { return "skopeo" }
func (s *skopeo) close()       {}

func (s *skopeo) settle(context.Context) error { return nil }

func (s *skopeo) push(ctx context.Context, tag, repo string) error {
	return s.exec(ctx, "oci-archive:"+s.archives[tag], "docker://"+repo+":"+tag)
}

func (s *skopeo) pull(ctx context.Context, repo, tag, as string) error {
	return s.exec(ctx, "docker://"+repo+":"+tag, "oci:"+filepath.Join(s.dir, "layout")+":"+as)
}

func (s *skopeo) copy(ctx context.Context, from, to, tag string) error {
	return s.exec(ctx, "docker://"+from+":"+tag, "docker://"+to+":"+tag)
}

func (s *skopeo) exec(ctx context.Context, from, to string) error {
	args := []string{"--insecure-policy", "--tmpdir", s.dir, "copy", "--quiet", from, to}
	for _, side := range [][2]string{{"src", from}, {"dest", to}} {
		if strings.HasPrefix(side[1], "docker://") {
			args = append(args, "--"+side[0]+"-tls-verify=false")
		}
	}
	cmd := exec.CommandContext(ctx, "skopeo", args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// table returns the medians of all rounds.
func (b *bench) table() *report.Table {
	t := &report.Table{Title: "Snapshots between a store and registries on this host (median of the rounds)",
		Columns: []report.Column{{Name: "operation"}, {Name: "program"}, {Name: "snapshot"}, {Name: "rounds"},
			{Name: "ms", Digits: 0}, {Name: "MiB sent", Digits: 2}, {Name: "MiB received", Digits: 2}}}
	for _, o := range b.ops {
		t.Add(o.what, o.program, o.snapshot, len(o.times), report.Cell(report.Quantile(report.Millis(o.times...), 0.5)),
			report.Cell(report.Quantile(o.sent, 0.5)), report.Cell(report.Quantile(o.received, 0.5)))
	}
	t.Notef("sent and received: bytes of all connections with the registries, with headers")
	t.Notef("pack compresses the files; later operations find them in the cache")
	t.Notef("forkd's pull also decompresses the files and makes a snapshot; skopeo's pull stores the compressed files")
	t.Notef("parent: %d MiB of content in the memory; child: %d MiB more, as memory and as disk",
		b.opt.parent, b.opt.child)
	return t
}
