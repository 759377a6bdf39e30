package generators

import (
	"bytes"
	"fmt"
	"os"
	"strings"
)

// wipeOnFork is the name by which the report refers to generators that reseed after their page was
// wiped.
const wipeOnFork = "MADV_WIPEONFORK (BoringSSL, AWS-LC)"

// wipe clears the MADV_WIPEONFORK pages of a process, as fork(2) does in a child. Libraries such as
// BoringSSL and AWS-LC set a flag in such a page, and reseed when they find it cleared. wipe clears
// only pages that contain nothing but a flag. A thread that reads such a page at the same time is
// not harmed.
func (p *process) wipe() error {
	var smaps []byte
	for i := range p.regions {
		r := &p.regions[i]
		if !r.anonymous || r.end-r.start != pageSize || !p.isFlag(r) {
			continue
		}
		if smaps == nil {
			var err error
			if smaps, err = os.ReadFile(p.path(p.pid, "smaps")); err != nil {
				return err
			}
		}
		if !hasFlag(smaps, r, "wf") {
			continue
		}
		if _, err := p.mem.WriteAt([]byte{0}, int64(r.start)); err != nil {
			return err
		}
		p.reseeded(wipeOnFork)
	}
	return nil
}

// isFlag reports whether all bytes of a region except the first are zero.
func (p *process) isFlag(r *region) bool {
	page := p.chunk[:pageSize]
	if n, err := p.mem.ReadAt(page, int64(r.start)); err != nil || n != pageSize {
		return false
	}
	return page[0] != 0 && len(bytes.TrimLeft(page[1:], "\x00")) == 0
}

// hasFlag reports whether the VmFlags line of a region in smaps (proc(5)) contains the given
// two-letter flag.
func hasFlag(smaps []byte, r *region, flag string) bool {
	_, after, found := bytes.Cut(smaps, fmt.Appendf(nil, "%08x-%08x ", r.start, r.end))
	if !found {
		return false
	}
	_, after, _ = bytes.Cut(after, []byte("VmFlags:"))
	line, _, _ := bytes.Cut(after, []byte("\n"))
	return strings.Contains(string(line)+" ", " "+flag+" ")
}

// eachIndex calls found(i) for the index i of each occurrence of part in text. It stops at the
// first error.
func eachIndex(text, part []byte, found func(i int) error) error {
	for at := 0; ; {
		i := bytes.Index(text[at:], part)
		if i < 0 {
			return nil
		}
		if err := found(at + i); err != nil {
			return err
		}
		at += i + 1
	}
}
