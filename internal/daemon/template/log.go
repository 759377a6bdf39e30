package template

import (
	"strings"
	"sync"
	"time"
)

// Levels of entries, in E2B's words.
const (
	levelInfo  = "info"
	levelWarn  = "warn"
	levelError = "error"
)

// Bounds on the log of one build.
const (
	maxEntries = 10_000
	maxLogged  = 1 << 20 // bytes of all messages
	maxLine    = 4 << 10 // bytes of one message
)

// Entry is a line of a build's log.
type Entry struct {
	Time    time.Time
	Level   string
	Step    string
	Message string
}

// Log is the log of a build and its commands. The zero Log is empty.
type Log struct {
	mu      sync.Mutex
	entries []Entry
	bytes   int
	full    bool
}

// add appends an entry. Beyond the bounds, a note replaces the first omitted entry. An entry of
// level error is always appended, because a build has at most one such entry.
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

// From returns at most the given number of entries, beginning with index n.
func (l *Log) From(n, most int) []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n < 0 || n >= len(l.entries) {
		return nil
	}
	rest := l.entries[n:]
	return append([]Entry(nil), rest[:min(most, len(rest))]...)
}

// printable removes control characters from a guest's text.
func printable(text string) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) > maxLine {
		text = strings.ToValidUTF8(text[:maxLine], "") + " …"
	}
	return text
}
