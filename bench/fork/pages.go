package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/bench/internal/report"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/sandbox"
)

// pageKind is the purpose for which a guest's kernel uses a page.
type pageKind int

// The kinds of pages. They are derived from the flags that the guest's kernel has for a page.
const (
	kindProgram  pageKind = iota // memory of programs and cached files
	kindTable                    // page tables of programs
	kindSlab                     // small objects of the kernel
	kindReserved                 // the kernel's image and per-CPU memory
	kindOther                    // kernel stacks, rings of devices, modules and so on
	pageKinds
)

func (k pageKind) String() string {
	return [...]string{"programs, cached files", "page tables of programs", "slabs", "kernel image, per-CPU memory",
		"kernel stacks, rings, modules"}[k]
}

// Bits of a page's flags in /proc/kpageflags (include/uapi/linux/kernel-page-flags.h). flagReserved
// is from linux/kernel-page-flags.h.
const (
	flagLRU      = 1 << 5
	flagSlab     = 1 << 7
	flagMapped   = 1 << 11
	flagTable    = 1 << 26
	flagReserved = 1 << 32
)

func kindOf(flags uint64) pageKind {
	switch {
	case flags&flagTable != 0:
		return kindTable
	case flags&flagSlab != 0:
		return kindSlab
	case flags&flagReserved != 0:
		return kindReserved
	case flags&(flagLRU|flagMapped) != 0:
		return kindProgram
	}
	return kindOther
}

// A page counts as little changed if at most fewWords of its 8-byte words have changed.
const fewWords = 8

// pageCounts counts the pages of one kind, by how many of their words differ from the snapshot.
type pageCounts struct{ same, few, many int }

// pages classifies the guest pages that children write until the children are idle.
type pages struct {
	children int
	kinds    [pageKinds]pageCounts // sums over all children
}

// pagesRead is the number of children whose pages are read.
const pagesRead = 5

// readPages forks pagesRead children one after another and classifies their pages. Before that, it
// forks another child. From the kernel of this child, it reads the purpose of each page. Siblings
// use their pages for the same purposes, except for the few pages that this reading changes.
func (b *bench) readPages(ctx context.Context) (p *pages, err error) {
	p = &pages{}
	return p, b.withManager(1, func(m *lab.Manager) error {
		flags, err := b.pageFlags(ctx, m)
		if err != nil {
			return err
		}
		for m.KillAll(); p.children < pagesRead; m.KillAll() {
			if err := m.WaitPool(ctx, 1); err != nil {
				return err
			}
			child, err := forkOne(ctx, m)
			if err != nil {
				return err
			}
			time.Sleep(countSettle)
			if err := p.add(child.PID, b.opt.memoryMiB<<20, flags); err != nil {
				return err
			}
		}
		return nil
	})
}

func forkOne(ctx context.Context, m *lab.Manager) (sandbox.Info, error) {
	r, err := m.Fork(ctx, sandbox.ForkRequest{Tag: tag, N: 1})
	if err != nil {
		return sandbox.Info{}, err
	}
	return r.Sandboxes[0], nil
}

// pageFlags returns the flags that the guest's kernel has for each page of its memory.
func (b *bench) pageFlags(ctx context.Context, m *lab.Manager) ([]uint64, error) {
	child, err := forkOne(ctx, m)
	if err != nil {
		return nil, err
	}
	size := b.opt.memoryMiB << 20 / pageBytes * 8
	agent := agentclient.New(agentclient.DialUnix(m.VsockSocket(child.ID)))
	r, err := agent.Exec(ctx, agentclient.ExecRequest{User: "root", Cwd: "/", MaxOutput: int(size),
		Args: []string{"head", "-c", fmt.Sprint(size), "/proc/kpageflags"}})
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("read the guest's page flags: %w", err)
	}
	flags := make([]uint64, len(r.Stdout)/8)
	for i := range flags {
		flags[i] = binary.LittleEndian.Uint64(r.Stdout[8*i:])
	}
	return flags, nil
}

// pageBytes is the size of a page, in guests and on x86-64 hosts.
const pageBytes = 4096

// Bits of an entry of /proc/<pid>/pagemap (Documentation/admin-guide/mm/pagemap.rst).
const (
	pagemapFile    = 1 << 61 // the page belongs to a file, or is shared
	pagemapPresent = 1 << 63
)

// add counts the private pages of a VMM's guest memory. The guests of this program have less than 3
// GiB, so their memory is one range.
func (p *pages) add(pid int, guestBytes uint64, flags []uint64) error {
	parts, base, err := guestParts(pid, guestBytes)
	if err != nil {
		return err
	}
	dir := fmt.Sprintf("/proc/%d", pid)
	entries, err := os.Open(dir + "/pagemap")
	if err != nil {
		return err
	}
	defer entries.Close()
	memory, err := os.Open(dir + "/mem")
	if err != nil {
		return err
	}
	defer memory.Close()
	for _, part := range parts {
		buf := make([]byte, (part.end-part.start)/pageBytes*8)
		if _, err := entries.ReadAt(buf, int64(part.start/pageBytes*8)); err != nil {
			return fmt.Errorf("read pagemap: %w", err)
		}
		for at := part.start; at < part.end; at += pageBytes {
			entry := binary.LittleEndian.Uint64(buf[(at-part.start)/pageBytes*8:])
			if entry&pagemapPresent == 0 || entry&pagemapFile != 0 {
				continue
			}
			differ, err := part.differ(memory, at)
			if err != nil {
				return err
			}
			kind := kindOther
			if n := (at - base) / pageBytes; n < uint64(len(flags)) {
				kind = kindOf(flags[n])
			}
			switch c := &p.kinds[kind]; {
			case differ == 0:
				c.same++
			case differ <= fewWords:
				c.few++
			default:
				c.many++
			}
		}
	}
	p.children++
	return nil
}

// guestPart is a mapping of guest memory. Its pages come from the file of a layer, or from no file.
type guestPart struct {
	start, end, offset uint64
	layer              string // path of the layer's file; empty if there is none
}

// guestParts returns the mappings of guest memory, sorted by address (proc_pid_maps(5)). A page has
// the same offset in a layer's file as in guest memory. So the first mapping of a layer shows where
// guest memory begins.
func guestParts(pid int, guestBytes uint64) (parts []guestPart, base uint64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, 0, err
	}
	for line := range strings.Lines(string(text)) {
		var v guestPart
		var mode, device, inode string
		if _, err := fmt.Sscanf(line, "%x-%x %s %x %s %s", &v.start, &v.end, &mode, &v.offset, &device, &inode); err != nil {
			return nil, 0, fmt.Errorf("parse maps line %q: %w", line, err)
		}
		if mode != "rw-p" {
			continue
		}
		if fields := strings.Fields(line); len(fields) > 5 && strings.HasSuffix(fields[5], snapshot.MemoryLayerFile) {
			v.layer = fields[5]
		}
		if base == 0 && v.layer != "" {
			base = v.start - v.offset
		}
		parts = append(parts, v)
	}
	if base == 0 {
		return nil, 0, fmt.Errorf("process %d has mapped no memory layer", pid)
	}
	parts = slices.DeleteFunc(parts, func(v guestPart) bool { return v.start < base || v.end > base+guestBytes })
	return parts, base, nil
}

// differ returns how many words of a page differ from the snapshot, given the page's address in the
// VMM.
func (v *guestPart) differ(memory io.ReaderAt, at uint64) (words int, err error) {
	var now, was [pageBytes]byte
	if _, err := memory.ReadAt(now[:], int64(at)); err != nil {
		return 0, fmt.Errorf("read guest memory: %w", err)
	}
	if v.layer != "" {
		f, err := os.Open(v.layer)
		if err != nil {
			return 0, err
		}
		defer f.Close()
		if _, err := f.ReadAt(was[:], int64(v.offset+at-v.start)); err != nil {
			return 0, fmt.Errorf("read %s: %w", v.layer, err)
		}
	}
	for i := 0; i < pageBytes; i += 8 {
		if [8]byte(now[i:i+8]) != [8]byte(was[i:i+8]) {
			words++
		}
	}
	return words, nil
}

func (p *pages) table() *report.Table {
	t := &report.Table{Title: "Guest pages that an idle, confirmed child has written (mean)", Columns: []report.Column{
		{Name: "used by the guest for"}, {Name: "pages"}, {Name: "as in the snapshot"},
		{Name: fmt.Sprintf("≤ %d words differ", fewWords)}, {Name: "more differ"}}}
	mean := func(n int) any { return report.Cell(float64(n) / float64(p.children)) }
	var all pageCounts
	add := func(name string, c pageCounts) {
		t.Add(name, mean(c.same+c.few+c.many), mean(c.same), mean(c.few), mean(c.many))
	}
	for k := range pageKinds {
		c := p.kinds[k]
		add(k.String(), c)
		all = pageCounts{all.same + c.same, all.few + c.few, all.many + c.many}
	}
	add("all", all)
	t.Notef("%d children, %v after they had confirmed; a word has 8 bytes", p.children, countSettle)
	t.Notef("as in the snapshot: written with what was there, such as a lock that was taken and released. Page tables are " +
		"written by the processor, which reads them with the right to mark them; those of the kernel are in the last two rows")
	return t
}
