package docker

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/format/outlog"
	"github.com/forkd/forkd/internal/host/agentclient"
)

// Bounds on the output that is kept for later readers, in bytes.
const (
	maxLog   = 1 << 20  // of a container's main process
	maxLine  = 16 << 10 // of an entry
	perEntry = 64       // approximate size of an entry without its text
)

// entry is a line of output, or a part of a line that is longer than maxLine.
type entry struct {
	from agentclient.Stream
	at   time.Time
	text []byte
}

func (e *entry) isComplete() bool {
	return len(e.text) >= maxLine || bytes.HasSuffix(e.text, []byte("\n"))
}

// output passes the output of a process to its readers, and keeps the end of it. The process waits
// for a reader that is slow, until the reader's connection is closed. After a process is killed, it
// waits at most rushTime for all of its readers together. So slow readers cannot hide the end of
// the process.
type output struct {
	limit int // bytes to keep

	mu      sync.Mutex
	file    string  // file for older output; empty: none
	stored  bool    // the file exists
	entries []entry // oldest first
	size    int     // bytes of entries
	readers map[*reader]bool
	ended   chan struct{} // closed and replaced when the process has ended
	hurry   chan struct{} // closed when the process is killed; replaced when it has ended
	late    chan struct{} // closed rushTime after hurry; replaced together with hurry
	killed  bool          // hurry is closed
}

func newOutput(limit int) *output {
	return &output{limit: limit, readers: make(map[*reader]bool), ended: make(chan struct{}),
		hurry: make(chan struct{}), late: make(chan struct{})}
}

// chunk is a piece of output as it arrived.
type chunk struct {
	from agentclient.Stream
	at   time.Time
	text []byte
}

// reader receives output until the process ends, or until close is called.
type reader struct {
	of     *output
	chunks chan chunk
	ended  <-chan struct{} // closed when the process has ended; all chunks have then been received
	gone   chan struct{}   // closed when close is called
}

// readAll returns the kept output, and a reader of the later output. No output is missing between
// them.
func (o *output) readAll() ([]entry, *reader, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	older, err := o.loadLocked()
	if err != nil {
		return nil, nil, err
	}
	kept, r := o.readLocked()
	return append(older, kept...), r, nil
}

// read is like readAll, but without the output in the file.
func (o *output) read() ([]entry, *reader) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.readLocked()
}

func (o *output) readLocked() ([]entry, *reader) {
	r := &reader{of: o, chunks: make(chan chunk), ended: o.ended, gone: make(chan struct{})}
	o.readers[r] = true
	kept := make([]entry, len(o.entries))
	for n, e := range o.entries {
		kept[n] = entry{e.from, e.at, bytes.Clone(e.text)} // the last entries may still grow
	}
	return kept, r
}

func (r *reader) close() {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	if r.of.readers[r] {
		delete(r.of.readers, r)
		close(r.gone)
	}
}

// write passes output to the readers, and waits until they have received it.
func (o *output) write(from agentclient.Stream, p []byte) {
	c := chunk{from, time.Now(), bytes.Clone(p)}
	o.mu.Lock()
	if o.limit > 0 {
		o.keepLocked(c)
	}
	list := make([]*reader, 0, len(o.readers))
	for r := range o.readers {
		list = append(list, r)
	}
	hurry, late := o.hurry, o.late
	o.mu.Unlock()
	for _, r := range list {
		select {
		case r.chunks <- c:
			continue
		case <-r.gone:
			continue
		case <-hurry:
		}
		select {
		case r.chunks <- c:
		case <-r.gone:
		case <-late:
			r.offer(c)
		}
	}
}

// offer passes output to a reader that waits for it, and closes any other reader.
func (r *reader) offer(c chunk) {
	select {
	case r.chunks <- c:
	default:
		r.close()
	}
}

// rushTime is the maximum time for which a killed process waits for its readers.
const rushTime = 5 * time.Second

// rush limits the time for which a killed process waits for its readers. If the given channel is
// closed, the process has already ended, and rush does nothing. Without this check, it would limit
// the time of the next process with this output.
func (o *output) rush(ended <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case <-ended:
		return
	default:
	}
	if !o.killed {
		o.killed = true
		close(o.hurry)
		late := o.late
		time.AfterFunc(rushTime, func() { close(late) })
	}
}

// keepLocked adds output to the entries, and drops the oldest entries.
func (o *output) keepLocked(c chunk) {
	for rest := c.text; len(rest) > 0; {
		var last *entry
		for n := len(o.entries) - 1; n >= 0 && n >= len(o.entries)-2 && last == nil; n-- {
			if o.entries[n].from == c.from && !o.entries[n].isComplete() {
				last = &o.entries[n]
			}
		}
		if last == nil {
			o.entries = append(o.entries, entry{from: c.from, at: c.at})
			o.size += perEntry
			last = &o.entries[len(o.entries)-1]
		}
		line := rest
		if n := bytes.IndexByte(rest, '\n'); n >= 0 {
			line = rest[:n+1]
		}
		line = line[:min(len(line), maxLine-len(last.text))]
		last.text = append(last.text, line...)
		o.size += len(line)
		rest = rest[len(line):]
	}
	if o.size <= o.limit {
		return
	}
	drop := 0
	for ; o.size > o.limit*3/4 && drop < len(o.entries)-1; drop++ { // more than needed, so that this happens rarely
		o.size -= perEntry + len(o.entries[drop].text)
	}
	o.entries = slices.Delete(o.entries, 0, drop)
}

// maxLogFile bounds the file of older output, in bytes.
const maxLogFile = 2 * maxLog

// loadLocked returns the entries in the file.
func (o *output) loadLocked() ([]entry, error) {
	if !o.stored {
		return nil, nil
	}
	i, err := os.Stat(o.file)
	if err == nil && i.Size() > maxLogFile {
		err = fmt.Errorf("%s has %d bytes: want at most %d", o.file, i.Size(), maxLogFile)
	}
	if err != nil {
		return nil, err
	}
	p, err := os.ReadFile(o.file)
	if err != nil {
		return nil, err
	}
	list, err := outlog.Decode(p)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.file, err)
	}
	entries := make([]entry, 0, len(list))
	for _, e := range list {
		entries = append(entries, entry{agentclient.Stream(e.Stream), e.At, e.Text})
	}
	return entries, nil
}

// store moves the output to the file, so that it takes no memory. If the file cannot be read, the
// older output in the file is lost. If the file cannot be written, the output in memory is lost.
func (o *output) store() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.file == "" || len(o.entries) == 0 {
		return nil
	}
	all, unread := o.loadLocked()
	all = append(all, o.entries...)
	size := 0
	for _, e := range all {
		size += perEntry + len(e.text)
	}
	list := make([]outlog.Entry, 0, len(all))
	for _, e := range all {
		if size <= o.limit {
			list = append(list, outlog.Entry{Stream: uint8(e.from), At: e.at, Text: e.text})
		}
		size -= perEntry + len(e.text)
	}
	o.entries, o.size = nil, 0
	err := atomicfile.Write(o.file, outlog.Encode(list), 0o600)
	o.stored = o.stored || err == nil
	return errors.Join(unread, err)
}

// discard removes the file.
func (o *output) discard() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	file, had := o.file, o.stored
	o.file, o.stored = "", false
	if !had {
		return nil
	}
	return os.Remove(file)
}

// end tells the readers that the process has ended.
func (o *output) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.ended)
	o.ended = make(chan struct{})
	if o.killed {
		o.killed, o.hurry, o.late = false, make(chan struct{}), make(chan struct{})
	}
}
