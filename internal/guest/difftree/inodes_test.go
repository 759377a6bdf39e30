package difftree

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/proto/diffproto"
)

// image returns an ext4 file system with 40 files, made by mke2fs.
func image(t testing.TB, options ...string) []byte {
	t.Helper()
	if _, err := exec.LookPath("mke2fs"); err != nil {
		t.Skip("no mke2fs command")
	}
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "disk")
	for i := range 40 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), []byte("text"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	args := append(options, "-q", "-t", "ext4", "-d", dir, file, "40M")
	if out, err := exec.Command("mke2fs", args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	p, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// inodeOf returns the number and the offset of a file's inode, which it reads with debugfs.
func inodeOf(t *testing.T, disk []byte, name string) (number, offset uint64) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, disk, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("debugfs", "-R", "imap /"+name, file).Output()
	if err != nil {
		t.Skip("no debugfs command")
	}
	// The output is, for example:
	//	Inode 13 is part of block group 0
	//		located at block 133, offset 0x0c00
	var group, block uint64
	text := strings.Join(strings.Fields(string(out)), " ")
	if _, err := fmt.Sscanf(text, "Inode %d is part of block group %d located at block %d, offset %v", &number, &group,
		&block, &offset); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	size := uint64(1024) << binary.LittleEndian.Uint32(disk[superBlock+0x18:])
	return number, block*size + offset
}

// The finder finds exactly the inodes that differ within the ranges.
func TestFinder(t *testing.T) {
	for name, options := range map[string][]string{"large blocks": {"-b", "4096"}, "small blocks": {"-b", "1024"},
		"small inodes": {"-I", "128"}, "32 bits": {"-O", "^64bit"}, "no flexible groups": {"-O", "^flex_bg", "-g", "8192"}} {
		t.Run(name, func(t *testing.T) {
			old := image(t, options...)
			now := bytes.Clone(old)
			var want []uint64
			for _, file := range []string{"3", "39"} {
				number, at := inodeOf(t, old, file)
				now[at+5]++
				want = append(want, number)
			}
			_, outside := inodeOf(t, old, "20")
			now[outside]++ // this change is found only if a range includes it
			find := func(ranges ...diffproto.Range) *changes {
				t.Helper()
				f, err := newFinder(bytes.NewReader(old), bytes.NewReader(now))
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range ranges {
					if err := f.add(r); err != nil {
						t.Fatal(err)
					}
				}
				return &f.found
			}
			found := find(diffproto.Range{Length: outside &^ 255}, diffproto.Range{Offset: outside&^255 + 256, Length: 1 << 40})
			if found.n != len(want) || !found.has(want[0]) || !found.has(want[1]) || found.has(want[0]+1) {
				t.Errorf("%d inodes, want %v", found.n, want)
			}
			if all := find(diffproto.Range{Length: 1 << 40}); all.n != len(want)+1 {
				t.Errorf("%d inodes, want one more", all.n)
			}
			if none := find(diffproto.Range{Length: 1024}, diffproto.Range{Offset: 1 << 40, Length: 1 << 40}); none.n != 0 {
				t.Errorf("%d inodes outside of all tables", none.n)
			}
		})
	}
}

// newFinder returns an error if the inodes of the two file systems are at different places, or if one of
// them is not ext4. All files are then compared.
func TestOtherFileSystems(t *testing.T) {
	disk := image(t)
	for name, other := range map[string][]byte{"nothing": nil, "zeros": make([]byte, 1<<20),
		"other inodes": image(t, "-N", "500"), "cut off": disk[:1500]} {
		if _, err := newFinder(bytes.NewReader(disk), bytes.NewReader(other)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if !(&changes{}).has(12) {
		t.Error("an unknown inode counts as unchanged")
	}
}

// A super block and group descriptors with any content cause no panic.
func FuzzGeometry(f *testing.F) {
	disk := image(f)
	f.Add(disk[superBlock:2*superBlock], disk[4096:8192])
	f.Fuzz(func(t *testing.T, super, groups []byte) {
		p := make([]byte, 64<<10)
		copy(p[superBlock:2*superBlock], super)
		copy(p[4096:], groups)
		finder, err := newFinder(bytes.NewReader(p), bytes.NewReader(p))
		if err == nil {
			_ = finder.add(diffproto.Range{Length: 1 << 63})
			for inode := range uint64(300) {
				finder.found.sameData(inode)
			}
		}
	})
}

// A file has the same data if its inodes on both disks refer to the same place, and no range
// includes a part of that place.
func TestSameData(t *testing.T) {
	disk := image(t)
	number, at := inodeOf(t, disk, "20")
	size := uint64(1024) << binary.LittleEndian.Uint32(disk[superBlock+0x18:])
	data := uint64(bytes.Index(disk, []byte("text\x00")))
	for data%size != 0 || binary.LittleEndian.Uint32(disk[at+inodeRoot+extentSize+8:])*uint32(size) != uint32(data) {
		next := bytes.Index(disk[data+1:], []byte("text\x00"))
		if next < 0 {
			t.Fatal("the data of the file is nowhere")
		}
		data += uint64(next) + 1
	}
	behind := uint64(len(disk)) - size
	for name, c := range map[string]struct {
		change func(now []byte)
		ranges []diffproto.Range
		want   bool
	}{
		"other mode": {func(now []byte) { now[at]++ }, []diffproto.Range{{Length: 4096}, {Offset: behind,
			Length: size}}, true},
		"written":           {func([]byte) {}, []diffproto.Range{{Offset: data, Length: 1}}, false},
		"written before":    {func([]byte) {}, []diffproto.Range{{Offset: data - 1, Length: 1}}, true},
		"written behind":    {func([]byte) {}, []diffproto.Range{{Offset: data + size, Length: size}}, true},
		"written around":    {func([]byte) {}, []diffproto.Range{{Length: 10}, {Offset: 20, Length: 1 << 40}}, false},
		"at another place":  {func(now []byte) { now[at+inodeRoot+extentSize+8]++ }, nil, false},
		"no extents":        {func(now []byte) { now[at+inodeFlags+2] ^= 8 }, nil, false},
		"not in this order": {func([]byte) {}, []diffproto.Range{{Offset: behind, Length: 1}, {Length: 1}}, false},
	} {
		now := bytes.Clone(disk)
		c.change(now)
		f, err := newFinder(bytes.NewReader(disk), bytes.NewReader(now))
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range c.ranges {
			if err := f.add(r); err != nil {
				t.Fatal(err)
			}
		}
		if got := f.found.sameData(number); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
		if f.found.sameData(0) || f.found.sameData(1<<40) {
			t.Errorf("%s: an inode that does not exist has the same data", name)
		}
	}
}
