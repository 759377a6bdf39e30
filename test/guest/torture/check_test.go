package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/test/torture/guest"
)

var small = shape{pages: 700, blocks: 48, writers: 2}

// instant is a copy of memory and disk at a moment between two writes.
type instant struct {
	words []uint64
	disk  [][]uint64
}

// rig is an arena and a disk. Its writers run step by step.
type rig struct {
	t       *testing.T
	a       *arena
	d       *disk
	writers []*writer
}

func newRig(t *testing.T) *rig {
	t.Helper()
	a, err := newArena(small)
	if err != nil {
		t.Fatal(err)
	}
	d, err := openDisk(t.TempDir(), small)
	if err != nil {
		t.Skipf("no O_DIRECT here: %v", err)
	}
	r := &rig{t: t, a: a, d: d}
	for id := range small.writers + 1 {
		w := &writer{a: a, id: id, rng: uint64(id) + 1}
		if id == small.writers {
			w.disk = d
		}
		r.writers = append(r.writers, w)
	}
	return r
}

// write makes every writer write n times.
func (r *rig) write(n int) {
	r.t.Helper()
	for i := range n * len(r.writers) {
		w := r.writers[i%len(r.writers)]
		w.write(w.pick())
	}
	for _, w := range r.writers {
		if len(w.faults) > 0 {
			r.t.Fatal(w.faults)
		}
	}
}

func (r *rig) save() instant {
	r.t.Helper()
	r.d.forget()
	s := instant{words: slices.Clone(r.a.words)}
	for b := range small.blocks {
		p := make([]uint64, pageWords)
		if err := r.d.read(b, p); err != nil {
			r.t.Fatal(err)
		}
		s.disk = append(s.disk, p)
	}
	return s
}

// check checks the copy s.
func (s instant) check() guest.Report {
	a := &arena{shape: small, words: s.words}
	return check(a, func(b int, p []uint64) error { copy(p, s.disk[b]); return nil })
}

func (s instant) clone() instant {
	c := instant{words: slices.Clone(s.words)}
	for _, p := range s.disk {
		c.disk = append(c.disk, slices.Clone(p))
	}
	return c
}

func (s instant) memPage(i int) []uint64 { return s.words[i*pageWords:][:pageWords] }

func wantOK(t *testing.T, what string, r guest.Report) {
	t.Helper()
	if !r.OK {
		t.Fatalf("%s: %q", what, r.Mismatches)
	}
}

// The check finds any mixture of two instants, whichever pages of memory or blocks of disk are from
// the later instant.
func TestEveryMixtureOfInstantsIsFound(t *testing.T) {
	r := newRig(t)
	r.write(900) // enough writes to make the rings wrap around
	early := r.save()
	r.write(60)
	late := r.save()
	wantOK(t, "early", early.check())
	wantOK(t, "late", late.check())
	for _, c := range []struct {
		name      string
		base, mix instant
	}{{"late in early", early, late}, {"early in late", late, early}} {
		changed := 0
		for i := range len(c.base.words) / pageWords {
			if !slices.Equal(c.base.memPage(i), c.mix.memPage(i)) {
				changed++
				m := c.base.clone()
				copy(m.memPage(i), c.mix.memPage(i))
				if m.check().OK {
					t.Errorf("%s: memory page %d of another instant was not found", c.name, i)
				}
			}
		}
		for b := range c.base.disk {
			if !slices.Equal(c.base.disk[b], c.mix.disk[b]) {
				changed++
				m := c.base.clone()
				m.disk[b] = c.mix.disk[b]
				if m.check().OK {
					t.Errorf("%s: block %d of another instant was not found", c.name, b)
				}
			}
		}
		if changed < 100 {
			t.Fatalf("only %d pages differ", changed)
		}
		memory, disk := c.base.clone(), c.base.clone()
		memory.words, disk.disk = c.mix.words, c.mix.disk
		if memory.check().OK || disk.check().OK {
			t.Errorf("%s: memory and disk of different instants were not found", c.name)
		}
	}
	mixtures(t, early, late)
}

// mixtures makes mixtures in which each page is from one of two instants at random, and checks that
// each mixture is found.
func mixtures(t *testing.T, a, b instant) {
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 200 {
		m := a.clone()
		share := rng.Float64()
		fromA, fromB := 0, 0
		for i := range len(a.words) / pageWords {
			if slices.Equal(a.memPage(i), b.memPage(i)) {
				continue
			}
			if rng.Float64() < share {
				copy(m.memPage(i), b.memPage(i))
				fromB++
			} else {
				fromA++
			}
		}
		if ok := m.check().OK; ok && fromB > 0 {
			t.Errorf("round %d: a mixture of %d and %d pages was not found", round, fromA, fromB)
		}
	}
}

// Damage inside a page or block is found and described.
func TestDamageIsFoundAndDescribed(t *testing.T) {
	r := newRig(t)
	r.write(400)
	good := r.save()
	page := func(s instant, u int) []uint64 { return (&arena{shape: small, words: s.words}).page(u) }
	written := int((&arena{shape: small, words: good.words}).ring(0)[0]) // a page that was written
	seq := (&arena{shape: small, words: good.words}).table()[written]
	for _, c := range []struct {
		name   string
		damage func(s instant)
		want   string
	}{
		{"a lost page", func(s instant) { clear(page(s, written)) }, "[0:512]=zero"},
		{"a page that was never written", func(s instant) { fill(page(s, written), written, 0) }, "[0:512]=0"},
		{"the second half lost", func(s instant) { clear(page(s, written)[256:]) },
			fmt.Sprintf("[0:256]=%d [256:512]=zero", seq)},
		{"half-written", func(s instant) {
			next := make([]uint64, pageWords)
			fill(next, written, seq+1)
			copy(page(s, written), next[:100])
		}, fmt.Sprintf("[0:100]=%d [100:512]=%d", seq+1, seq)},
		{"another page's content", func(s instant) { copy(page(s, written), page(s, written+2)) },
			fmt.Sprintf("page %d: want", written)},
		{"one bit", func(s instant) { page(s, 5)[77] ^= 1 << 40 }, "page 5: want"},
		{"a sector of a block", func(s instant) { clear(s.disk[7][64:128]) }, "[64:128]=zero"},
		{"a lost block", func(s instant) { clear(s.disk[8]) }, "block 8: want"},
		{"a write under way", func(s instant) { s.words[2*pageWords+recIntent] = 9 }, "write 9 of unit"},
		{"a lost ticket page", func(s instant) { clear(s.memPage(1)) }, "0 writes were begun"},
		{"a lost record", func(s instant) { clear(s.memPage(2)) }, "writer 0: "},
	} {
		m := good.clone()
		c.damage(m)
		got := m.check()
		if text := strings.Join(got.Mismatches, "\n"); got.OK || !strings.Contains(text, c.want) {
			t.Errorf("%s: want %q in %q", c.name, c.want, text)
		}
	}
}

// When a writer overwrites a page, it finds any word of the page that was damaged after a fork.
func TestWritersFindDamageThatTheyOverwrite(t *testing.T) {
	for _, k := range []int{0, 1, 255, 511} {
		r := newRig(t)
		r.write(20)
		r.a.page(4)[k]++
		r.writers[0].write(4)
		asWords(r.d.buf)[0] = 0
		if err := r.d.get(10, r.d.buf); err != nil {
			t.Fatal(err)
		}
		asWords(r.d.buf)[k]++
		if err := r.d.put(10); err != nil {
			t.Fatal(err)
		}
		r.writers[2].write(small.pages + 10)
		for _, c := range []struct {
			w    *writer
			want string
		}{{r.writers[0], "page 4: "}, {r.writers[2], "block 10: "}} {
			if len(c.w.faults) != 1 || !strings.Contains(c.w.faults[0], c.want) ||
				!strings.Contains(c.w.faults[0], fmt.Sprintf("found word %d of write", k)) {
				t.Errorf("word %d: %q", k, c.w.faults)
			}
		}
		wantOK(t, "after overwriting", r.save().check())
	}
}

// Reading an odd block compares its content on the disk with its content in the page cache.
func TestReadSeesPageCacheAndDisk(t *testing.T) {
	r := newRig(t)
	r.write(100)
	for b := range small.blocks {
		p := make([]uint64, pageWords)
		if err := r.d.read(b, p); err != nil || p[0] != first(small.pages+b, r.a.table()[small.pages+b]) {
			t.Errorf("block %d: %v", b, err)
		}
	}
}

func TestSeqOfInvertsContent(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 1000 {
		u, k, seq := rng.IntN(1<<20), rng.IntN(pageWords), rng.Uint64()
		if got := seqOf(first(u, seq)+uint64(k)*wordStep, u, k); got != seq {
			t.Fatalf("unit %d word %d: write %d, want %d", u, k, got, seq)
		}
	}
}

// Answers have two properties on which a driver relies: a mark is set at the instant of the
// verification, and an invalid request is refused.
func TestAnswer(t *testing.T) {
	r := newRig(t)
	s := &server{a: r.a, disk: r.d, writers: r.writers}
	r.write(10)
	if got := s.answer(strings.Fields("mark 7 hot 3 verify")); !got.OK || got.Mark != 7 || got.Pages != small.pages ||
		got.Blocks != small.blocks || got.Seq != 30 || got.CPUs != 2 {
		t.Errorf("%+v", got)
	}
	if got := s.answer(strings.Fields("mark 5 rest 9")); !got.OK || got.Mark != 7 || r.a.words[wordRest] != 9 {
		t.Errorf("a mark that comes late: %+v", got)
	}
	for range 100 {
		if u := r.writers[1].pick(); u > 5 {
			t.Fatalf("unit %d is not hot", u)
		}
	}
	for _, bad := range []string{"mark", "mark x", "nonsense 1"} {
		if got := s.answer(strings.Fields(bad)); got.OK {
			t.Errorf("%q: %+v", bad, got)
		}
	}
	r.a.page(3)[9]++
	if got := s.answer([]string{"verify"}); got.OK || len(got.Mismatches) != 1 {
		t.Errorf("%+v", got)
	}
}
