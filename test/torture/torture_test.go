package torture

import (
	"context"
	"flag"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/jail"
	"github.com/forkd/forkd/internal/vmtest"
	"github.com/forkd/forkd/test/torture/guest"
)

var (
	branches = flag.Int("torture.n", fewBranches, "how many branches")
	seed     = flag.Uint64("torture.seed", 1, "of the choices")
	dataMiB  = flag.Int("torture.mib", 8, "memory that each guest writes, MiB")
	vcpus    = flag.String("torture.vcpus", "1,2", "vCPUs of the guests, one after another")
	report   = flag.String("torture.report", "", "file for the counts, as JSON, rewritten after every step")
)

// fewBranches is the number of branches of a plain run. Such a run does every kind of operation at
// least once with each number of vCPUs, which may take more branches. Its long lines are shorter.
const (
	fewBranches = 60
	shortLine   = 12 // branches of a long line in a plain run
	longLine    = 24 // branches of a long line in longer runs
)

// stormBranches is the number of branches after which a run must have had a storm of write faults.
// A run without a storm fails, because it has not tested storms.
const stormBranches = 40

// TestTorture checks that every copy of a guest is correct, even if the guest writes memory and
// disk as fast as it can. It checks children, sources and ancestors, with each number of vCPUs and
// every kind of fault.
func TestTorture(t *testing.T) {
	assets := vmtest.Load(t)
	ram := t.TempDir()
	undo, err := mountRAM(ram)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := undo(); err != nil {
			t.Error(err)
		}
	})
	jails, err := jail.New(jail.Options{})
	if err != nil {
		t.Fatal(err)
	}
	dir := vmtest.ShortDir(t)
	rep := NewReport(*seed, os.Stdout)
	write := func() {
		if err := rep.Write(*report); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() {
		t.Log(rep.Line())
		write()
	})
	progress := func(format string, args ...any) {
		rep.Say(format, args...)
		write()
	}
	ctx := context.WithoutCancel(t.Context()) // cancelling a step would leave a VMM running
	counts := strings.Split(*vcpus, ",")
	line := shortLine
	if *branches > fewBranches {
		line = longLine
	}
	for i, count := range counts {
		cpus, err := strconv.Atoi(count)
		if err != nil || cpus < 1 {
			t.Fatalf("-torture.vcpus %s: want numbers of vCPUs, such as 1,2", *vcpus)
		}
		rng := rand.New(rand.NewPCG(*seed, uint64(cpus)))
		size := guest.Size{MemoryMiB: *dataMiB, DiskMiB: 2, CPUs: cpus}
		rig := NewRig(Config{Assets: assets, Guest: size, Jail: jails, Line: line}, dir, ram, rng, rep, progress)
		base, err := rig.Boot(ctx)
		if err == nil {
			progress("booted %d vCPUs", cpus)
			err = rig.Run(ctx, base, (*branches)*(i+1)/len(counts))
		}
		if err != nil {
			rep.Fail(err)
			t.Fatalf("seed %d: %v", *seed, err)
		}
	}
	if rep.Branches >= stormBranches && rep.Storms == 0 {
		t.Errorf("seed %d: %d branches and no write-fault storm", *seed, rep.Branches)
	}
}
