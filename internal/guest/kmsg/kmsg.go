// Package kmsg writes the agent's log. In a guest it writes to /dev/kmsg, so that the console shows
// the agent's and the kernel's messages in chronological order. Elsewhere it writes to a plain
// file.
//
// The log has no fields, sampling or rotation, because the kernel limits and stores it.
package kmsg

import (
	"fmt"
	"io"
	"strings"
)

// maxRecord is the maximum length of a message's text, in bytes. A record with the level, the
// agent's name and the text must fit into one write to /dev/kmsg (LOG_LINE_MAX of printk).
const maxRecord = 900

// Log writes one record per call. Several goroutines may use a Log if its writer permits concurrent
// writes.
type Log struct {
	w     io.Writer
	plain bool
}

// New returns a log to /dev/kmsg, opened by the caller.
func New(w io.Writer) *Log { return &Log{w: w} }

// NewPlain returns a log that writes words instead of the kernel's level numbers.
func NewPlain(w io.Writer) *Log { return &Log{w: w, plain: true} }

// Errorf logs a failure. Failures have level 3 of syslog(2), which reaches the console even with
// "quiet".
func (l *Log) Errorf(format string, args ...any) { l.write("<3>", "error: ", format, args) }

// Warnf logs that a non-essential part is missing.
func (l *Log) Warnf(format string, args ...any) { l.write("<4>", "warning: ", format, args) }

// Infof logs progress.
func (l *Log) Infof(format string, args ...any) { l.write("<6>", "", format, args) }

func (l *Log) write(level, word, format string, args []any) {
	text := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " ")
	if len(text) > maxRecord {
		text = text[:maxRecord] + "..."
	}
	if l.plain {
		level = word
	}
	// An error of the log itself is ignored, because there is no place to report it.
	_, _ = io.WriteString(l.w, level+"forkd-agent: "+text+"\n")
}
