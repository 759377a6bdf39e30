package virtq

import (
	"encoding/binary"
	"fmt"

	"github.com/forkd/forkd/internal/vmm/guestmem"
)

// MaxChain is the maximum number of descriptors in one chain, direct or indirect. An indirect chain
// may be longer than its queue. preadv accepts no more parts than this. Linux uses far fewer
// descriptors, because it obeys the segment limit that a device announces.
const MaxChain = 1024

// MaxBytes is the maximum number of bytes in one chain. The longest request of any device is a
// disk's request, with 8 MiB and a header. During a live branch, Pop must save all pages that the
// device may write. There are at most MaxPages such pages. A pause waits for Pop, so MaxBytes also
// bounds the pause.
const MaxBytes = 9 << 20

// MaxUnwrittenBytes is the maximum number of bytes in one chain of a queue with LeaveUnwritten. The
// longest chain of Linux is a report of 32 free blocks of 4 MiB each.
const MaxUnwrittenBytes = 1 << 30

// MaxPages is the maximum number of pages that one chain touches. Each descriptor may begin and end
// in the middle of a page.
const MaxPages = MaxBytes/guestmem.PageSize + 2*MaxChain

// Descriptor flags (virtio 1.2 §2.7.5).
const (
	descNext     = 1 // VIRTQ_DESC_F_NEXT
	descWrite    = 2 // VIRTQ_DESC_F_WRITE
	descIndirect = 4 // VIRTQ_DESC_F_INDIRECT
)

const descSize = 16

// Chain holds the buffers of one request, as views of guest memory. The driver has filled the
// buffers in Readable, and the device fills the buffers in Writable. The guest may change the
// content of all buffers at any time, so the device must read each field only once, into a copy.
type Chain struct {
	Head     uint16 // the chain's first descriptor, for Queue.Push
	Readable [][]byte
	Writable [][]byte

	ReadLen  uint32 // total length of Readable in bytes
	WriteLen uint32 // total length of Writable in bytes

	readable, writable [][]byte // storage that Readable and Writable reuse
}

// CopyIn moves up to len(p) bytes from the front of Readable to p. It returns the number of moved
// bytes.
func (c *Chain) CopyIn(p []byte) int {
	n := 0
	for n < len(p) && len(c.Readable) > 0 {
		k := copy(p[n:], c.Readable[0])
		n += k
		c.Readable = advance(c.Readable, k)
	}
	c.ReadLen -= uint32(n)
	return n
}

// CopyOut moves up to len(p) bytes from p to the front of Writable. It returns the number of moved
// bytes.
func (c *Chain) CopyOut(p []byte) int {
	n := 0
	for n < len(p) && len(c.Writable) > 0 {
		k := copy(c.Writable[0], p[n:])
		n += k
		c.Writable = advance(c.Writable, k)
	}
	c.WriteLen -= uint32(n)
	return n
}

// CutLast removes the last writable byte of the chain and returns it, or nil if there is none.
// Block devices write a request's status to this byte.
func (c *Chain) CutLast() []byte {
	if len(c.Writable) == 0 {
		return nil
	}
	i := len(c.Writable) - 1
	last := c.Writable[i]
	cut := last[len(last)-1:]
	if c.Writable[i] = last[:len(last)-1]; len(last) == 1 {
		c.Writable = c.Writable[:i]
	}
	c.WriteLen--
	return cut
}

// advance drops the first n bytes of views[0].
func advance(views [][]byte, n int) [][]byte {
	if views[0] = views[0][n:]; len(views[0]) == 0 {
		return views[1:]
	}
	return views
}

// Slice appends a part of the given views to dst. The part begins after the first skip bytes of the
// views, and has at most limit bytes.
func Slice(dst, views [][]byte, skip, limit int) [][]byte {
	for _, v := range views {
		k := min(skip, len(v))
		v, skip = v[k:], skip-k
		if v = v[:min(limit, len(v))]; len(v) > 0 {
			dst, limit = append(dst, v), limit-len(v)
		}
	}
	return dst
}

// LeaveUnwritten declares that the device neither reads nor writes the buffers of the queue. So Pop
// saves no pages for a live branch, and a chain may have MaxUnwrittenBytes.
func (q *Queue) LeaveUnwritten() { q.unwritten = true }

// walk fills q.chain with the chain that begins at head.
func (q *Queue) walk(head uint16) error {
	c := &q.chain
	c.Head, c.ReadLen, c.WriteLen = head, 0, 0
	c.readable, c.writable = c.readable[:0], c.writable[:0]
	table, size := q.cfg.Desc, uint32(q.cfg.Size)
	next, indirect, total := uint32(head), false, uint64(0)
	limit := min(size, MaxChain)
	for count := uint32(0); ; {
		if next >= size {
			return fmt.Errorf("descriptor %d of %d", next, size)
		}
		gpa, length, flags, link, err := q.desc(table + descSize*guestmem.GPA(next))
		if err != nil {
			return err
		}
		if flags&descIndirect != 0 {
			// An indirect table must not be nested, and the descriptor must have no next (virtio
			// 1.2 §2.7.5.3.1).
			if !q.cfg.Indirect || indirect || flags&descNext != 0 || length == 0 || length%descSize != 0 {
				return errIndirect
			}
			table, size, next, indirect = gpa, length/descSize, 0, true
			limit = min(limit+min(size, MaxChain), MaxChain)
			continue
		}
		// Count every step, so that a loop of descriptors ends.
		if count++; count > limit {
			return errLoop
		}
		if total += uint64(length); total > q.maxBytes() {
			return errBytes
		}
		if err := c.add(q, gpa, length, flags&descWrite != 0); err != nil {
			return err
		}
		if flags&descNext == 0 {
			c.Readable, c.Writable = c.readable, c.writable
			return nil
		}
		next = uint32(link)
	}
}

// maxBytes returns the maximum number of bytes in one chain.
func (q *Queue) maxBytes() uint64 {
	if q.unwritten {
		return MaxUnwrittenBytes
	}
	return MaxBytes
}

// desc reads one descriptor.
func (q *Queue) desc(at guestmem.GPA) (gpa guestmem.GPA, length uint32, flags, next uint16, err error) {
	var d [descSize]byte
	if err = q.mem.ReadAt(d[:], at); err != nil {
		return
	}
	le := binary.LittleEndian
	return guestmem.GPA(le.Uint64(d[0:])), le.Uint32(d[8:]), le.Uint16(d[12:]), le.Uint16(d[14:]), nil
}

// add appends one buffer to c. It skips empty buffers, which are legal.
func (c *Chain) add(q *Queue, gpa guestmem.GPA, length uint32, write bool) error {
	if !write && len(c.writable) > 0 {
		return errOrder
	}
	if length == 0 {
		return nil
	}
	if write {
		view := q.mem.WriteView
		if q.unwritten {
			view = q.mem.ReadView
		}
		v, err := view(gpa, int(length))
		if err != nil {
			return err
		}
		c.writable = append(c.writable, v)
		c.WriteLen += length
		return nil
	}
	v, err := q.mem.ReadView(gpa, int(length))
	if err != nil {
		return err
	}
	c.readable = append(c.readable, v)
	c.ReadLen += length
	return nil
}
