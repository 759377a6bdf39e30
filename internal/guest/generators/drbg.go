package generators

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"
)

// OpenSSL keeps its generators on the heap, in structs: RAND_DRBG in version 1.1.1, PROV_DRBG from
// 3.0 on. The fields listed here have the same layout in all versions. When a generator is used, it
// reseeds if generate_counter has reached reseed_interval. The generators of threads also reseed
// when their parent's reseed_counter has changed. Offsets are relative to max_perslen:
//
//	-40  max_request           65536
//	-32  min_entropylen
//	-24  max_entropylen
//	-16  min_noncelen
//	 -8  max_noncelen
//	  0  max_perslen           0x7fffffff
//	  8  max_adinlen           0x7fffffff
//	 16  generate_counter      32 bits
//	 20  reseed_interval       32 bits
//	 24  reseed_time           seconds since 1970
//	 32  reseed_time_interval  seconds
//	 40  reseed_counter        32 bits
const (
	drbgHead     = 176 // bytes before max_perslen that are read, because 3.0 has pointers to functions there
	drbgSize     = drbgHead + 48
	offRequest   = drbgHead - 40
	offEntropy   = drbgHead - 32
	offNonce     = drbgHead - 16
	offGenerate  = drbgHead + 16
	offInterval  = drbgHead + 20
	offTime      = drbgHead + 24
	offSeconds   = drbgHead + 32
	offReseeds   = drbgHead + 40
	maxRequest   = 1 << 16
	maxSeed      = 4096    // largest min_entropylen, and largest min_noncelen, of a generator
	maxReseeding = 1 << 24 // largest reseed_interval, and largest reseed_time_interval in seconds, of a generator
	reseedsStep  = 0x10000 // added to reseed_counter; larger than the number of reseeds during one search
)

// needle is the content of max_perslen and max_adinlen, which the search looks for.
var needle = []byte{0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0}

var (
	errTime   = fmt.Errorf("more than %v for one search", maxTime)
	errMemory = fmt.Errorf("more than %d MiB of memory for one search", maxMemory>>20)
)

// reseedDRBGs makes every generator of OpenSSL in the memory of a process reseed at its next use.
// It writes two aligned words, so that a thread that uses the generator sees either the old or the
// new value of each word.
func (p *process) reseedDRBGs() error {
	return p.searchMemory(needle, func(r *region) bool { return r.anonymous }, func(addr uint64) error {
		if addr%8 != 0 {
			return nil
		}
		var text [drbgSize]byte
		if _, err := p.mem.ReadAt(text[:], int64(addr-drbgHead)); err != nil {
			return nil // too close to the edge of the memory to be a generator
		}
		library, ok := p.drbg(&text)
		if !ok {
			return nil
		}
		interval := text[offInterval : offInterval+4]
		if binary.LittleEndian.Uint32(interval) == 0 {
			p.repeats(library + ": reseeding is turned off")
			return nil
		}
		reseeds := binary.LittleEndian.Uint32(text[offReseeds:])
		var moved [4]byte
		binary.LittleEndian.PutUint32(moved[:], max(1, reseeds+reseedsStep))
		_, err1 := p.mem.WriteAt(moved[:], int64(addr-drbgHead+offReseeds))
		_, err2 := p.mem.WriteAt(interval, int64(addr-drbgHead+offGenerate))
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		p.reseeded(library)
		return nil
	})
}

// drbg reports whether the given text contains a generator, and returns the name of the library
// that has the generator's code. It finds that library by function pointers, which the struct has
// contained since version 3.0.
func (p *process) drbg(text *[drbgSize]byte) (library string, ok bool) {
	u64 := func(off int) uint64 { return binary.LittleEndian.Uint64(text[off:]) }
	u32 := func(off int) uint32 { return binary.LittleEndian.Uint32(text[off:]) }
	seconds := int64(u64(offSeconds))
	if u64(offRequest) != maxRequest || u64(offEntropy) > maxSeed || u64(offNonce) > maxSeed ||
		u32(offInterval) > maxReseeding || int64(u64(offTime)) < 0 || seconds < 0 || seconds > maxReseeding {
		return "", false
	}
	for off := 0; off < offRequest; off += 8 {
		if path := p.codeAt(u64(off)); path != nil {
			return base(path), true
		}
	}
	return "OpenSSL 1.1.1", true // the struct of 1.1.1 has no pointers in the part that was read
}

// chunkSize is the size of one read of memory.
const chunkSize = 256 << 10

// spend counts n bytes that a search is about to read. It returns an error if the search's time or
// memory limit is exceeded.
func (s *search) spend(n int) error {
	if time.Now().After(s.deadline) {
		return errTime
	}
	if s.left -= n; s.left < 0 {
		return errMemory
	}
	return nil
}

// searchMemory calls found(addr) for the address of each occurrence of text in the memory of a
// process. It searches only the regions for which want returns true, and skips pages that the
// process has never written.
func (p *process) searchMemory(text []byte, want func(*region) bool, found func(addr uint64) error) error {
	pagemap, err := os.Open(p.path(p.pid, "pagemap"))
	if err != nil {
		return err
	}
	defer pagemap.Close()
	for i := range p.regions {
		r := &p.regions[i]
		if !want(r) {
			continue
		}
		for at := r.start; at < r.end; {
			from, to, err := p.present(pagemap, at, r.end)
			if err != nil {
				return err
			}
			if err := p.searchRun(text, from, to, found); err != nil {
				return err
			}
			at = to
		}
	}
	return nil
}

const pageSize = 4096

// Bits of an entry of pagemap.
const (
	pagePresent = 1 << 63
	pageSwapped = 1 << 62
)

// present returns the first run of written pages in the address range [at, end). If there is no
// such page, both results are end.
func (p *process) present(pagemap *os.File, at, end uint64) (from, to uint64, err error) {
	if p.entries == nil {
		p.entries = make([]byte, 8*512)
	}
	for from = end; at < end; {
		pages := min((end-at)/pageSize, uint64(len(p.entries)/8))
		n, err := pagemap.ReadAt(p.entries[:8*pages], int64(at/pageSize*8))
		if n < 8 {
			return 0, 0, fmt.Errorf("pagemap: %w", err)
		}
		for e := p.entries[:n/8*8]; len(e) > 0; e, at = e[8:], at+pageSize {
			switch there := binary.LittleEndian.Uint64(e)&(pagePresent|pageSwapped) != 0; {
			case there && from == end:
				from = at
			case !there && from != end:
				return from, at, nil
			}
		}
	}
	return from, end, nil
}

// searchRun calls found(addr) for the address of each occurrence of text in the address range
// [from, to).
func (p *process) searchRun(text []byte, from, to uint64, found func(addr uint64) error) error {
	buf := p.chunk
	for from < to {
		n := min(to-from, uint64(len(buf)))
		if err := p.spend(int(n)); err != nil {
			return err
		}
		if _, err := p.mem.ReadAt(buf[:n], int64(from)); err != nil {
			return nil // the process has unmapped the region in the meantime
		}
		if err := eachIndex(buf[:n], text, func(i int) error { return found(from + uint64(i)) }); err != nil {
			return err
		}
		if n < uint64(len(buf)) {
			return nil
		}
		from += n - uint64(len(text))
	}
	return nil
}
