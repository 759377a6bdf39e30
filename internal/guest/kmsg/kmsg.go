// Package kmsg writes the agent's log: in a guest to /dev/kmsg, where the kernel shows it on the
// console in order with its own messages, else to a plain file.
//
// It has no fields, sampling or rotation: the kernel limits and keeps the log.
package kmsg

import (
	"fmt"
	"io"
	"strings"
)

// maxRecord is the longest record that the kernel takes in one write (LOG_LINE_MAX of printk, less
// its prefix).
const maxRecord = 900

// Log writes one record per call. It may be used concurrently if its writer may.
type Log struct {
	w     io.Writer
	plain bool
}

// New returns a log to /dev/kmsg, opened by the caller.
func New(w io.Writer) *Log { return &Log{w: w} }

// NewPlain returns a log that writes words instead of the kernel's level numbers.
func NewPlain(w io.Writer) *Log { return &Log{w: w, plain: true} }

// Errorf logs a failure. It is level 3 of syslog(2), which reaches the console even with "quiet".
func (l *Log) Errorf(format string, args ...any) { l.write("<3>", "error: ", format, args) }

// Warnf logs the lack of something that is not essential.
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
	// An error of the log itself cannot be reported.
	_, _ = io.WriteString(l.w, level+"forkd-agent: "+text+"\n")
}
