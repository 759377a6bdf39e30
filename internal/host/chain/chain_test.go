package chain

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/memlayer"
	"github.com/forkd/forkd/internal/proto/vm"
)

// After a gap between two extents of a layer was filled, it has no holes. This holds whether the
// layers below have all, some or none of the pages in the gap.
func TestFilledGapsHaveNoHoles(t *testing.T) {
	const page = vm.PageSize
	for _, c := range []struct {
		name  string
		lower []vm.Extent
	}{
		{"all", []vm.Extent{{GPA: 2 * page, Length: 4 * page, Offset: 2 * page}}},
		{"a part", []vm.Extent{{GPA: 3 * page, Length: page, Offset: 3 * page}}},
		{"two parts", []vm.Extent{{GPA: 0, Length: 3 * page}, {GPA: 4 * page, Length: 9 * page, Offset: 4 * page}}},
		{"nothing", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, want := t.TempDir(), make([]byte, 8*page)
			var files []*os.File
			for _, name := range []string{"lower", "own"} {
				f, err := os.Create(filepath.Join(dir, name))
				if err == nil {
					err = f.Truncate(8 * page)
				}
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				files = append(files, f)
			}
			write := func(f *os.File, e vm.Extent, value byte) {
				t.Helper()
				p := bytes.Repeat([]byte{value}, int(min(e.Length, 8*page-e.Offset)))
				if _, err := f.WriteAt(p, int64(e.Offset)); err != nil {
					t.Fatal(err)
				}
				copy(want[e.GPA:], p)
			}
			for _, e := range c.lower {
				write(files[0], e, 1)
			}
			own := []vm.Extent{{GPA: 0, Length: 2 * page, Layer: 1}, {GPA: 6 * page, Length: 2 * page, Layer: 1,
				Offset: 6 * page}}
			for _, e := range own {
				write(files[1], e, 2)
			}
			if err := fillGaps(t.Context(), files[1], own, []memlayer.Span{{Start: 2 * page, Length: 4 * page}}, c.lower,
				files[:1]); err != nil {
				t.Fatal(err)
			}
			if hole, err := files[1].Seek(0, unix.SEEK_HOLE); err != nil || hole != 8*page {
				t.Errorf("there is a hole at page %d (%v)", hole/page, err)
			}
			if got, err := os.ReadFile(files[1].Name()); err != nil || !bytes.Equal(got, want) {
				t.Errorf("the layer differs (%v)", err)
			}
		})
	}
}

// Copying stops when its context ends, for example because the sandbox is deleted or the branch has
// taken too long.
func TestCopyingEndsWithItsContext(t *testing.T) {
	const page = vm.PageSize
	dir := t.TempDir()
	var files [2]*os.File // the lower layer, and the snapshot's own layer
	for i, name := range []string{"lower", "own"} {
		f, err := os.Create(filepath.Join(dir, name))
		if err == nil {
			err = f.Truncate(8 * page)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files[i] = f
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	own := []vm.Extent{{Length: page, Layer: 1}, {GPA: 6 * page, Length: page, Layer: 1, Offset: 6 * page}}
	gap := []memlayer.Span{{Start: page, Length: 5 * page}}
	lower := []vm.Extent{{Length: 8 * page}}
	for name, below := range map[string][]vm.Extent{"copied": lower, "zeros": nil} {
		if err := fillGaps(ctx, files[1], own, gap, below, files[:1]); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := flatten(ctx, files[1], 1, lower, files[:]); !errors.Is(err, context.Canceled) {
		t.Errorf("flatten: %v", err)
	}
	if got, err := os.ReadFile(files[1].Name()); err != nil || len(got) != 8*page ||
		!bytes.Equal(got, make([]byte, 8*page)) {
		t.Errorf("something was written (%v)", err)
	}
}
