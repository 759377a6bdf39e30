package torture

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/forkd/forkd/internal/vmtest"
)

var (
	branches = flag.Int("torture.n", 100, "how many branches")
	seed     = flag.Uint64("torture.seed", 1, "of the choices")
	dataMiB  = flag.Int("torture.mib", 8, "memory that each guest writes, MiB")
	report   = flag.String("torture.report", "", "file for the counts, as JSON")
)

// Every copy of a guest that writes memory and disk as fast as it can is whole: children, sources, and ancestors, with
// one and with two vCPUs, whatever goes wrong meanwhile.
func TestTorture(t *testing.T) {
	assets := vmtest.Load(t)
	ram, err := os.MkdirTemp("/dev/shm", "fkt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(ram) })
	dir := vmtest.ShortDir(t)
	rep := NewReport(*seed)
	t.Cleanup(func() {
		t.Log(rep.Line())
		if *report == "" {
			return
		}
		if err := rep.Write(*report); err != nil {
			t.Error(err)
		}
	})
	progress := func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	ctx := context.WithoutCancel(t.Context()) // a step that is cut off would leave a VMM behind
	for i, vcpus := range []uint32{1, 2} {
		rng := rand.New(rand.NewPCG(*seed, uint64(vcpus)))
		rig := NewRig(Config{
			Assets: assets, VCPUs: vcpus, MemoryMiB: 128, DataMiB: *dataMiB, DiskMiB: 2,
		}, dir, ram, rng, rep, progress)
		base, err := rig.Boot(ctx)
		if err == nil {
			progress("booted %d vCPUs", vcpus)
			err = rig.Run(ctx, base, (*branches)*(i+1)/2)
		}
		if err != nil {
			rep.Fail(err)
			t.Fatalf("seed %d: %v", *seed, err)
		}
	}
}
