// Package loglimit limits the lines of the daemon's log that clients or guests can cause, so that they
// cannot fill a disk.
//
// It counts the lines that it omits. It does not decide which lines need a limit.
package loglimit

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"

	"golang.org/x/time/rate"
)

// The usual limits. PerSecond is the number of lines per second in the long run. AtOnce is the
// number of lines that are permitted immediately one after another, after a time without lines.
// maxText is the maximum length of a text, in bytes.
const (
	PerSecond = 10
	AtOnce    = 200
	maxText   = 1024
)

// Lines limits lines of one kind. Its methods may be called concurrently.
type Lines struct {
	limiter *rate.Limiter
	leftOut atomic.Int64 // number of lines that were omitted since the latest written line
}

// New returns a Lines that permits perSecond lines per second in the long run. After a time without
// lines, it permits atOnce lines immediately one after another.
func New(perSecond float64, atOnce int) *Lines {
	return &Lines{limiter: rate.NewLimiter(rate.Limit(perSecond), atOnce)}
}

// Log writes a line. If there were too many lines, Log omits the line and counts it. The field
// left_out of a line has the number of lines that were omitted before it.
func (l *Lines) Log(to *slog.Logger, level slog.Level, msg string, args ...any) {
	if !l.limiter.Allow() {
		l.leftOut.Add(1)
		return
	}
	to.Log(context.Background(), level, msg, append(args, "left_out", l.leftOut.Swap(0))...)
}

// Cut returns the beginning of a text that a client or a guest may have chosen.
func Cut(text string) string { return strings.ToValidUTF8(text[:min(len(text), maxText)], "?") }
