package main

import (
	"fmt"
	"slices"

	"github.com/forkd/forkd/test/torture/guest"
)

// maxMismatches limits the mismatches in a report. If there are more, the last line says how many
// were left out.
const maxMismatches = 32

type checker struct {
	a     *arena
	found []string
	more  int
}

func (c *checker) fail(format string, args ...any) {
	if len(c.found) == maxMismatches {
		c.more++
		return
	}
	c.found = append(c.found, fmt.Sprintf(format, args...))
}

// check compares the data in the arena a and the disk blocks with each other. It calls read to get
// a block.
//
// Preconditions: no write is in progress.
func check(a *arena, read func(block int, p []uint64) error) guest.Report {
	c := &checker{a: a}
	table := a.table()
	for u := range a.pages {
		c.content(u, a.page(u), table[u])
	}
	buf := make([]uint64, pageWords)
	for b := range a.blocks {
		if err := read(b, buf); err != nil {
			c.fail("block %d: %v", b, err)
			continue
		}
		c.content(a.pages+b, buf, table[a.pages+b])
	}
	var done uint64
	for w := range a.writers + 1 {
		done += c.writer(w)
	}
	if ticket := *a.ticket(); ticket != done {
		c.fail("%d writes were begun, %d completed", ticket, done)
	}
	if c.more > 0 {
		c.found = append(c.found, fmt.Sprintf("and %d more", c.more))
	}
	return guest.Report{
		OK: len(c.found) == 0, Pages: a.pages, Blocks: a.blocks, Seq: *a.ticket(), Mark: a.words[wordMark],
		Mismatches: c.found,
	}
}

// content checks that p is the content of unit u after the write with the number seq. If it is not,
// content reports which writes have written the words of p.
func (c *checker) content(u int, p []uint64, seq uint64) {
	want := first(u, seq)
	for k := range p {
		if p[k] != want {
			c.fail("%s: want write %d throughout, has %s", c.a.name(u), seq, origin(p, u))
			return
		}
		want += wordStep
	}
}

// name returns the name by which messages refer to the unit.
func (s shape) name(u int) string {
	if u < s.pages {
		return fmt.Sprintf("page %d", u)
	}
	return fmt.Sprintf("block %d", u-s.pages)
}

// origin describes which writes have written the words of p.
func origin(p []uint64, u int) string {
	var out []byte
	for k, runs := 0, 0; k < len(p); runs++ {
		if runs == 8 {
			return string(append(out, " …"...))
		}
		end := k + 1
		if p[k] == 0 {
			for end < len(p) && p[end] == 0 {
				end++
			}
			out = fmt.Appendf(out, " [%d:%d]=zero", k, end)
		} else {
			seq := seqOf(p[k], u, k)
			for end < len(p) && seqOf(p[end], u, end) == seq {
				end++
			}
			out = fmt.Appendf(out, " [%d:%d]=%d", k, end, seq)
		}
		k = end
	}
	return string(out)
}

// writer checks the record and the ring of writer w against the table. It returns the number of
// writes that the writer has completed.
func (c *checker) writer(w int) uint64 {
	r, table := c.a.record(w), c.a.table()
	if r[recIntent] != 0 {
		c.fail("writer %d: write %d of unit %d is under way", w, r[recIntent], r[recUnit])
	}
	start, step, count := c.a.owned(w)
	var digest, last uint64
	for i := range count {
		u := start + i*step
		digest ^= token(u, table[u]) ^ token(u, 0)
		last = max(last, table[u])
	}
	if digest != r[recDigest] {
		c.fail("writer %d: digest of the table is %#x, the record says %#x", w, digest, r[recDigest])
	}
	if final := c.ring(w, r); final != last {
		c.fail("writer %d: last write in the table is %d, in the ring %d", w, last, final)
	}
	return r[recDone]
}

// ring checks the last writes of a writer, and returns the number of the latest write.
func (c *checker) ring(w int, r []uint64) (final uint64) {
	ring, table := c.a.ring(w), c.a.table()
	start, step, count := c.a.owned(w)
	latest := map[int]uint64{}
	chain, known := uint64(0), r[recDone] <= ringLen
	for n := r[recDone] - min(r[recDone], ringLen); n < r[recDone]; n++ {
		e := ring[n%ringLen*entry:][:entry]
		u := int(e[0])
		if u < start || u >= start+step*count || (u-start)%step != 0 || e[1] <= final {
			c.fail("writer %d: its write %d is of unit %d with number %d after %d", w, n, u, e[1], final)
			return final
		}
		if known && mix(chain, e[0], e[1]) != e[2] {
			c.fail("writer %d: the chain breaks at its write %d (number %d, %s)", w, n, e[1], c.a.name(u))
		}
		chain, known, final, latest[u] = e[2], true, e[1], e[1]
	}
	if chain != r[recChain] {
		c.fail("writer %d: the ring ends with chain %#x, the record says %#x", w, chain, r[recChain])
	}
	if unused := ring[min(r[recDone], ringLen)*entry:]; slices.ContainsFunc(unused, func(v uint64) bool {
		return v != 0
	}) {
		c.fail("writer %d: the ring has more than its %d writes", w, r[recDone])
	}
	for u, seq := range latest {
		if table[u] != seq {
			c.fail("%s: last written by %d according to the ring, %d according to the table", c.a.name(u), seq, table[u])
		}
	}
	return final
}
