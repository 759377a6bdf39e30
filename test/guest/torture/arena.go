package main

import (
	"fmt"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	pageSize  = 4096
	pageWords = pageSize / 8
)

// shape is the size of the memory and disk that the program writes. Each writer is a thread.
type shape struct {
	pages   int // pages of memory, spread over the memory writers
	blocks  int // blocks of the two disk files together, written by one more writer
	writers int // memory writers
}

// A unit is a page of memory (0 … pages-1) or a block on disk (pages … pages+blocks-1).
func (s shape) units() int { return s.pages + s.blocks }

// arena is the memory of the writers. It is outside the Go heap, so that the runtime neither moves
// it nor writes to it:
//
//	page 0           mark, hot, rest
//	page 1           ticket: the number of the latest write that any writer has begun
//	pages 2 …        one record per writer, see record
//	then             one ring per writer: its last ringLen writes, chained by a hash
//	then             table: the number of the last completed write, for each unit
//	then             the pages of memory themselves
//
// Every part has its own pages. So if a page is missing, or is a copy of a different instant, the
// content of that page contradicts the other pages.
type arena struct {
	shape
	words []uint64
	mem   []byte
}

// Words of page 0.
const (
	wordMark = iota // a number that the driver sets
	wordHot         // number of units that each writer uses; 0: all
	wordRest        // pause of a writer after every write, in microseconds
)

// Words of a writer's record.
const (
	recIntent = iota // number of the current write; 0: none
	recUnit          // unit of the current write
	recOld           // number of the unit's previous write
	recDone          // number of completed writes
	recDigest        // XOR of token(unit, table[unit]) ^ token(unit, 0) over all units of the writer
	recChain         // hash over all completed writes in their order
)

const (
	ringLen   = 512
	entry     = 3 // words of an entry of a ring: unit, number, hash after it
	ringWords = ringLen * entry
)

func newArena(s shape) (*arena, error) {
	a := &arena{shape: s}
	size := (a.dataAt() + s.pages*pageWords) * 8
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", size, err)
	}
	a.mem, a.words = mem, unsafe.Slice((*uint64)(unsafe.Pointer(&mem[0])), size/8)
	for u := range s.pages {
		fill(a.page(u), u, 0)
	}
	return a, nil
}

func (a *arena) ringsAt() int { return (2 + a.writers + 1) * pageWords }
func (a *arena) tableAt() int { return a.ringsAt() + (a.writers+1)*ringWords }
func (a *arena) dataAt() int {
	return a.tableAt() + (a.units()+pageWords-1)/pageWords*pageWords
}

func (a *arena) ticket() *uint64 { return &a.words[pageWords] }

func (a *arena) record(writer int) []uint64 { return a.words[(2+writer)*pageWords:][:pageWords] }

func (a *arena) ring(writer int) []uint64 { return a.words[a.ringsAt()+writer*ringWords:][:ringWords] }

func (a *arena) table() []uint64 { return a.words[a.tableAt():][:a.units()] }

func (a *arena) page(u int) []uint64 { return a.words[a.dataAt()+u*pageWords:][:pageWords] }

// owned returns the units of a writer: the first unit, the distance to the next unit, and the
// number of units. Neighbouring pages belong to different writers. The last writer owns the disk
// blocks.
func (a *arena) owned(writer int) (first, step, count int) {
	if writer == a.writers {
		return a.pages, 1, a.blocks
	}
	return writer, a.writers, (a.pages - writer + a.writers - 1) / a.writers
}

// begin records that a writer is about to write u. It returns the numbers of the previous write to
// u and of the new write.
func (a *arena) begin(writer, u int) (old, seq uint64) {
	r := a.record(writer)
	seq = atomic.AddUint64(a.ticket(), 1)
	old = a.table()[u]
	r[recUnit], r[recOld] = uint64(u), old
	atomic.StoreUint64(&r[recIntent], seq)
	return old, seq
}

// end records that a write is complete. The parameters old and seq are the results of begin.
func (a *arena) end(writer, u int, old, seq uint64) {
	r := a.record(writer)
	atomic.StoreUint64(&a.table()[u], seq)
	chain := mix(r[recChain], uint64(u), seq)
	e := a.ring(writer)[r[recDone]%ringLen*entry:][:entry]
	e[0], e[1], e[2] = uint64(u), seq, chain
	r[recDone]++
	r[recDigest] ^= token(u, old) ^ token(u, seq)
	r[recChain] = chain
	atomic.StoreUint64(&r[recIntent], 0)
}

// Word k of unit u after write seq is first(u, seq) + k*wordStep. The number seq can be computed
// from a word, so a wrong word shows which write has written it.
const (
	seqFactor  = 0x9e3779b97f4a7c15
	unitFactor = 0xc2b2ae3d27d4eb4f
	wordStep   = 0x165667b19e3779f9
)

func first(u int, seq uint64) uint64 { return seq*seqFactor ^ uint64(u+1)*unitFactor }

// seqOf returns the number of the write that puts the given word into place k of unit u.
func seqOf(word uint64, u, k int) uint64 {
	inverse := uint64(seqFactor) // Newton's iteration doubles the number of correct bits, which is three at first
	for range 5 {
		inverse *= 2 - seqFactor*inverse
	}
	return (word - uint64(k)*wordStep ^ uint64(u+1)*unitFactor) * inverse
}

// fill writes the content of unit u after the write with the number seq.
func fill(page []uint64, u int, seq uint64) {
	w := first(u, seq)
	for k := range page {
		page[k] = w
		w += wordStep
	}
}

// overwrite replaces the content of unit u, word by word in ascending order. The parameters old and
// seq are the numbers of two writes: the write that made the present content, and the new write.
// overwrite compares each word with the old content before it replaces the word, because writing
// would hide damage. It returns the index and the content of the first wrong word.
func overwrite(page []uint64, u int, old, seq uint64) (bad int, found uint64) {
	bad = -1
	was, is := first(u, old), first(u, seq)
	for k := range page {
		if page[k] != was && bad < 0 {
			bad, found = k, page[k]
		}
		page[k] = is
		was += wordStep
		is += wordStep
	}
	return bad, found
}

func mix(a, b, c uint64) uint64 {
	h := bits.RotateLeft64(a, 23)*seqFactor ^ b*unitFactor + c
	h ^= h >> 29
	h *= wordStep
	return h ^ h>>32
}

func token(u int, seq uint64) uint64 { return mix(1, uint64(u), seq) }
