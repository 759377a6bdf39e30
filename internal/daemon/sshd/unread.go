package sshd

import (
	"io"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// Bounds of the bytes that a connection has received and its channels have not read.
const (
	window           = 2 << 20 // of a channel: payload that package ssh takes before somebody reads it
	unreadPerChannel = 3 << 20
	unreadPerClient  = 1 << 20
)

// unread bounds the memory for the input of a connection that nothing has read yet. The window of a
// channel does not bound it: package ssh keeps each packet by itself, and a packet with one byte takes
// 48 bytes of memory. But it takes at least 36 bytes on the wire, so the bytes on the wire are counted.
//
// Only package ssh knows what a packet is for. So packets that hold no input, such as those that open
// windows, are counted as unread too, until each stream has been seen without old input:
//
//	            turn               turn               now
//	------------ | ---------------- | ---------------- |
//	 all read      counted in total   counted in total
//	                                  and in young
//
// When all streams have read what arrived before the last turn, only young can be unread. Then total
// becomes young, and the next turn begins.
type unread struct {
	mu sync.Mutex
	// +checklocks:mu
	streams map[*stream]struct{} // two for each channel
	// +checklocks:mu
	total int
	// +checklocks:mu
	young int
}

// add counts bytes from the wire. It reports whether the bound holds.
func (u *unread) add(n int) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.total, u.young = u.total+n, u.young+n
	u.turnLocked()
	return u.total <= len(u.streams)/2*unreadPerChannel+unreadPerClient
}

// turnLocked begins a turn if no stream has input from before the last one.
//
// +checklocks:u.mu
func (u *unread) turnLocked() {
	for s := range u.streams {
		if s.old > 0 && !s.reading {
			return
		}
	}
	u.total, u.young = max(0, min(u.total, u.young)), 0
	if len(u.streams) == 0 {
		u.total = 0
	}
	for s := range u.streams {
		if s.old = window; s.reading {
			s.old = 0
		}
	}
}

// stream is one of the two streams of a channel on which a client sends.
type stream struct {
	from   io.Reader
	of     *unread
	closed <-chan struct{} // closed when the client has closed the channel
	ended  sync.Once

	// Guarded by of.mu:
	reading bool // a call of Read waits, so there is no input
	old     int  // bytes to read until all input from before the last turn has certainly been read
}

// Read reads input. After its end, a goroutine reads what the client sends nevertheless.
func (s *stream) Read(p []byte) (int, error) {
	u := s.of
	u.mu.Lock()
	s.reading = true
	u.mu.Unlock()
	n, err := s.from.Read(p)
	u.mu.Lock()
	s.reading = false
	u.total -= n
	if s.old <= 0 {
		u.young -= n
	}
	if s.old -= n; n < len(p) { // package ssh fills p if it can
		s.old = 0
	}
	u.turnLocked()
	u.mu.Unlock()
	if err != nil {
		s.ended.Do(func() { go s.discard() })
	}
	return n, err
}

// afterEnd is the interval in which discard reads.
const afterEnd = time.Second

// discard reads a stream that has ended until the client closes the channel. Reading an ended stream
// never waits.
func (s *stream) discard() {
	for tick := time.NewTicker(afterEnd); ; {
		select {
		case <-s.closed:
			tick.Stop()
			return
		case <-tick.C:
			_, _ = io.Copy(io.Discard, s)
		}
	}
}

// channel is a channel whose input is counted. Clients have nothing to send on the second stream,
// which is for errors of processes: it is read and discarded.
type channel struct {
	ssh.Channel
	input, second *stream
}

// Read implements io.Reader.
func (c *channel) Read(p []byte) (int, error) { return c.input.Read(p) }

// count begins to count the input of a channel. The client has closed the channel when closed is
// closed.
func (u *unread) count(c ssh.Channel, closed <-chan struct{}) *channel {
	counted := &channel{c, &stream{from: c, of: u, closed: closed}, &stream{from: c.Stderr(), of: u, closed: closed}}
	u.mu.Lock()
	if u.streams == nil {
		u.streams = make(map[*stream]struct{})
	}
	u.streams[counted.input], u.streams[counted.second] = struct{}{}, struct{}{}
	u.mu.Unlock()
	go func() { _, _ = io.Copy(io.Discard, counted.second) }()
	return counted
}

// release ends the count of a channel that the client has closed, or whose connection has ended.
func (c *channel) release() {
	u := c.input.of
	for _, s := range []*stream{c.input, c.second} {
		_, _ = io.Copy(io.Discard, s) // the rest; this does not wait
		u.mu.Lock()
		delete(u.streams, s)
		u.turnLocked()
		u.mu.Unlock()
	}
}
