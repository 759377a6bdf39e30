// Command hub measures how long it takes to move snapshots between a store and OCI registries, and how many bytes cross
// the network. It compares forkd with skopeo, which moves the same blobs.
//
// The registries are processes of Debian's docker-registry on this host, each with an empty directory. A connection to
// a registry passes through this process, which counts its bytes. So the figures show the cost of the programs, not of
// a network. The snapshots are a parent and a child, which shares all files of the parent. Their content is random
// bytes and zeros.
//
// The command runs no VM. It needs docker-registry. If skopeo is not installed, its rows are empty. Tables go to
// standard output, progress to standard error, and all figures as JSON to the file -o. scripts/bench runs it.
//
// With -first, the command instead measures when a sandbox on another host gives its first answer, and how many bytes
// have crossed the network until then. This runs VMs, and needs no docker-registry: the registry is in this process,
// behind a link with the bandwidth -link.
package main

import (
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/bench/internal/report"
	"github.com/forkd/forkd/internal/cachedir"
)

// options are the flags.
type options struct {
	rounds int
	parent int // MiB of the parent's memory that have content
	child  int // MiB that the child has written

	first  bool // measure the time until a first answer
	recipe string
	link   int // MiB per second
}

// bench is one run of this program.
type bench struct {
	*lab.Program
	opt options
	dir string // directory for everything that the benchmark writes

	home     *host
	archives map[string]string // paths of the archives of the snapshots, by tag
	ops      []*operation
}

func main() {
	b := &bench{Program: lab.NewProgram("hub", 10*time.Minute, "no new round begins"),
		archives: make(map[string]string)}
	flag.IntVar(&b.opt.rounds, "rounds", 3, "how often everything is moved")
	flag.IntVar(&b.opt.parent, "parent", 256, "MiB of content in the memory of the parent")
	flag.IntVar(&b.opt.child, "child", 16, "MiB that the child has written")
	flag.BoolVar(&b.opt.first, "first", false, "measure the time until a first answer, see above")
	flag.StringVar(&b.opt.recipe, "recipe", "python-numpy", "with -first: image of the snapshot")
	flag.IntVar(&b.opt.link, "link", 12, "with -first: MiB per second that the registry sends")
	b.Main(b.opt.check, b.measure)
}

func (o *options) check() error {
	if o.rounds < 1 || o.child < 1 || o.parent < o.child || o.parent > 16<<10 {
		return errors.New("-rounds and -child want 1 or more, -parent at least -child and at most 16384")
	}
	if o.link < 1 || o.link > 1<<10 {
		return errors.New("-link wants 1 to 1024")
	}
	return nil
}

func (b *bench) measure(ctx context.Context) (_ *report.Report, err error) {
	info, err := lab.Host()
	if b.opt.first {
		if err == nil && info.Accel == lab.AccelPVM {
			err = lab.ErrUnfit
		}
		if err != nil {
			return nil, err
		}
		return b.measureFirst(ctx, info)
	}
	if err != nil && !errors.Is(err, lab.ErrUnfit) { // this program runs no VM, so ErrUnfit does not matter
		return nil, err
	}
	cache, err := cachedir.Dir()
	if err != nil {
		return nil, err
	}
	if b.dir, err = os.MkdirTemp(cache, "bench-hub-"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	// No login is needed, and this user's logins must not be used.
	if err := os.Setenv("DOCKER_CONFIG", b.dir); err != nil {
		return nil, err
	}
	if b.home, err = newHost(filepath.Join(b.dir, "home")); err != nil {
		return nil, err
	}
	defer b.home.close()
	b.Progress("snapshots of %d and %d MiB", b.opt.parent, b.opt.child)
	if err := b.home.makeFamily(ctx, b.opt.parent, b.opt.child); err != nil {
		return nil, err
	}
	if err := b.Rounds(b.opt.rounds, func() error { return b.round(ctx) }); err != nil {
		return nil, err
	}
	r := b.Report(info)
	r.Tables = append(r.Tables, b.table())
	return r, nil
}

// round moves the snapshots with each program.
func (b *bench) round(ctx context.Context) error {
	if err := b.pack(ctx); err != nil {
		return err
	}
	movers := []func(string) mover{func(dir string) mover { return &forkd{bench: b, dir: dir} }}
	if _, err := exec.LookPath("skopeo"); err == nil {
		movers = append(movers, func(dir string) mover { return &skopeo{bench: b, dir: dir} })
	}
	for _, newMover := range movers {
		if err := b.moveAll(ctx, newMover); err != nil {
			return err
		}
	}
	return nil
}
