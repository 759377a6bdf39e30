package main

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// churnPages is the size of the churner's block, in pages. The kernel reports only large free
// blocks to the balloon device: blocks of at least 128 KiB with forkd's kernel command line, and of
// 2 or 4 MiB without that command line. Freeing this many pages leaves some such blocks, wherever
// the pages are.
const churnPages = 12 << 20 / pageSize

// Times for which the churner uses a block, and waits after it has freed the block. Linux reports
// memory that has been free for two seconds (PAGE_REPORTING_DELAY in mm/page_reporting.c). So some
// blocks of the churner are reported before they are used again.
const (
	maxUse  = 3 * time.Second
	maxFree = 5 * time.Second
)

// churner takes a block of memory from the kernel, uses it, and gives it back, again and again. The
// VMM drops the content of reported memory. If it wrongly drops a page that is in use again, that
// page has wrong content, whether it belongs to the churner or to another program.
type churner struct {
	mu     sync.Mutex // held while a page is written, and while pages are checked
	seq    uint64     // number of the present block
	pages  [][]uint64 // pages of the block that have been written
	faults []string
}

func (c *churner) run() error {
	for {
		mem, err := unix.Mmap(-1, 0, churnPages*pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return fmt.Errorf("map %d pages: %w", churnPages, err)
		}
		words := unsafe.Slice((*uint64)(unsafe.Pointer(&mem[0])), len(mem)/8)
		for u := range churnPages {
			c.mu.Lock()
			page := words[u*pageWords:][:pageWords]
			fill(page, u, c.seq)
			c.pages = append(c.pages, page)
			c.mu.Unlock()
		}
		time.Sleep(rand.N(maxUse))
		c.mu.Lock()
		c.check()
		c.seq, c.pages = c.seq+1, c.pages[:0]
		c.mu.Unlock()
		if err := unix.Munmap(mem); err != nil {
			return fmt.Errorf("unmap the block: %w", err)
		}
		time.Sleep(rand.N(maxFree))
	}
}

// check compares the written pages of the block with the content that they must have.
//
// Preconditions: c.mu is held.
func (c *churner) check() {
	for u, page := range c.pages {
		want := first(u, c.seq)
		for k, word := range page {
			if word != want && len(c.faults) < maxMismatches {
				c.faults = append(c.faults, fmt.Sprintf("churner: page %d, word %d of block %d is %#x, want %#x", u, k, c.seq,
					word, want))
				break
			}
			want += wordStep
		}
	}
}
