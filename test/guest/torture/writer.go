package main

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// writer is one thread that writes its units as fast as its settings allow.
type writer struct {
	a    *arena
	id   int
	cpu  int   // the CPU to run on; -1: any
	disk *disk // nil for a memory writer
	rng  uint64

	mu     sync.Mutex // held during one write
	faults []string   // damage that the writer found while it overwrote pages
}

// run writes for ever. It chooses the next unit by the current time. With a fixed order, a fork
// would repeat the writes of its source, and could overwrite a page of a later instant without
// noticing.
func (w *writer) run() error {
	runtime.LockOSThread()
	if w.cpu >= 0 {
		var set unix.CPUSet
		set.Set(w.cpu)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return fmt.Errorf("keep writer %d on CPU %d: %w", w.id, w.cpu, err)
		}
	}
	for {
		w.mu.Lock()
		w.write(w.pick())
		w.mu.Unlock()
		if rest := atomic.LoadUint64(&w.a.words[wordRest]); rest > 0 {
			time.Sleep(time.Duration(rest) * time.Microsecond)
		}
	}
}

func (w *writer) pick() int {
	w.rng ^= uint64(time.Now().UnixNano())
	w.rng ^= w.rng << 13
	w.rng ^= w.rng >> 7
	w.rng ^= w.rng << 17
	first, step, count := w.a.owned(w.id)
	if hot := int(atomic.LoadUint64(&w.a.words[wordHot])); hot > 0 {
		count = min(count, hot)
	}
	return first + step*int(w.rng>>11%uint64(count))
}

// write writes unit u once. It checks each word of the page before it overwrites the word. If the
// guest is forked during the write, the fork continues at the same word.
func (w *writer) write(u int) {
	old, seq := w.a.begin(w.id, u)
	var bad int
	var found uint64
	if w.disk == nil {
		bad, found = overwrite(w.a.page(u), u, old, seq)
	} else {
		var err error
		if bad, found, err = w.disk.overwrite(u, old, seq); err != nil {
			w.fault("%s: write %d: %v", w.a.name(u), seq, err)
		}
	}
	if bad >= 0 {
		w.fault("%s: write %d found word %d of write %d, not %d", w.a.name(u), seq, bad, seqOf(found, u, bad), old)
	}
	w.a.end(w.id, u, old, seq)
}

func (w *writer) fault(format string, args ...any) {
	if len(w.faults) < maxMismatches {
		w.faults = append(w.faults, fmt.Sprintf("writer %d: ", w.id)+fmt.Sprintf(format, args...))
	}
}
