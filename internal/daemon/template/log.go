package template

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Levels of entries, in E2B's words.
const (
	levelDebug = "debug"
	levelInfo  = "info"
	levelWarn  = "warn"
	levelError = "error"
)

// Bounds on the log of one build.
const (
	maxEntries = 10_000
	maxLogged  = 1 << 20 // bytes of all messages
	maxLine    = 4 << 10 // of one
)

// Entry is a line of a build's log.
type Entry struct {
	Time    time.Time
	Level   string
	Step    string
	Message string
}

// Log is what a build and its commands say. The zero Log is empty.
type Log struct {
	mu      sync.Mutex
	entries []Entry
	bytes   int
	full    bool
}

// add appends an entry. Of what is beyond the bounds only the first is marked as missing, and
// errors are kept: there is one at most.
func (l *Log) add(level, step, message string) {
	message = printable(message)
	l.mu.Lock()
	defer l.mu.Unlock()
	if level != levelError {
		if l.full {
			return
		}
		if l.bytes += len(message); l.bytes > maxLogged || len(l.entries) >= maxEntries {
			l.full = true
			level, message = levelWarn, "the log is full: what follows is not in it"
		}
	}
	l.entries = append(l.entries, Entry{time.Now().UTC(), level, step, message})
}

// From returns at most so many entries from the n-th, counted from 0.
func (l *Log) From(n, most int) []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n < 0 || n >= len(l.entries) {
		return nil
	}
	rest := l.entries[n:]
	return append([]Entry(nil), rest[:min(most, len(rest))]...)
}

// printable makes text of a guest's fit for a message.
func printable(text string) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) > maxLine {
		text = strings.ToValidUTF8(text[:maxLine], "") + " …"
	}
	return text
}

// lines logs the output of a command, line by line.
type lines struct {
	log    *Log
	level  string
	step   string
	prefix string // of each
	rest   []byte // of a line without an end
	total  int64
}

// maxOutput is how much a command may write, in bytes, before it is ended: all of it is read.
const maxOutput = 256 << 20

// add takes what a command has written.
func (l *lines) add(p []byte) error {
	if l.total += int64(len(p)); l.total > maxOutput {
		return fmt.Errorf("ended after it had written %d MiB", maxOutput>>20)
	}
	l.rest = append(l.rest, p...)
	for {
		n := bytes.IndexByte(l.rest, '\n')
		if n < 0 && len(l.rest) < maxLine {
			return nil
		}
		if n < 0 {
			n = len(l.rest) - 1
		}
		l.put(l.rest[:n+1])
		l.rest = l.rest[n+1:]
	}
}

// end logs what the last line is, where nothing has ended it.
func (l *lines) end() {
	l.put(l.rest)
	l.rest = nil
}

func (l *lines) put(line []byte) {
	if text := strings.TrimRight(string(line), " \t\r\n"); text != "" {
		l.log.add(l.level, l.step, l.prefix+text)
	}
}
