package mcp

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/forkd/forkd/client"
)

// A model receives the first headOutput bytes and the last tailOutput bytes of each output of a
// command. Compilers report errors at the beginning, and results are at the end, so both parts are
// kept.
const (
	headOutput = 16 << 10
	tailOutput = 32 << 10
)

// maxStreamed is the number of bytes of output after which a command is killed.
const maxStreamed = 256 << 20

// excerptWriter keeps the beginning and the end of its input.
type excerptWriter struct {
	// Maximum numbers of bytes, in head (most) and in tail (least).
	most, least int
	head, tail  []byte
	total       int64
}

func newExcerpt(head, tail int) *excerptWriter { return &excerptWriter{most: head, least: tail} }

// Write implements io.Writer. It fails after maxStreamed bytes.
func (e *excerptWriter) Write(p []byte) (int, error) {
	n := len(p)
	if e.total += int64(n); e.total > maxStreamed {
		return 0, errStreamed
	}
	if room := e.most - len(e.head); room > 0 {
		k := min(room, len(p))
		e.head, p = append(e.head, p[:k]...), p[k:]
	}
	e.tail = append(e.tail, p[max(0, len(p)-e.least):]...)
	if over := len(e.tail) - e.least; over > 0 {
		e.tail = append(e.tail[:0], e.tail[over:]...)
	}
	return n, nil
}

var errStreamed = fmt.Errorf(
	"the command wrote more than %d MiB and was killed: write to a file instead",
	maxStreamed>>20,
)

// omitted returns the number of omitted bytes.
func (e *excerptWriter) omitted() int64 { return e.total - int64(len(e.head)+len(e.tail)) }

// text returns the kept text, with a note where bytes are missing.
func (e *excerptWriter) text() string {
	if n := e.omitted(); n > 0 {
		head := bytes.TrimRight(validEnd(e.head), "\n")
		return fmt.Sprintf("%s\n[… %d bytes omitted …]\n%s", plain(head), n, plain(validStart(e.tail)))
	}
	return plain(append(bytes.Clone(e.head), e.tail...))
}

// binary reports whether the output contains bytes that are not text. Such bytes are replaced; see
// plain.
func (e *excerptWriter) binary() bool {
	if e.omitted() > 0 {
		return !utf8.Valid(validEnd(e.head)) || !utf8.Valid(validStart(e.tail))
	}
	return !utf8.Valid(append(bytes.Clone(e.head), e.tail...))
}

// plain replaces invalid UTF-8.
func plain(p []byte) string { return strings.ToValidUTF8(string(p), "\uFFFD") }

// validEnd drops an incomplete character at the end.
func validEnd(p []byte) []byte {
	for i := 1; i < utf8.UTFMax && i <= len(p); i++ {
		if b := p[len(p)-i]; utf8.RuneStart(b) {
			if !utf8.FullRune(p[len(p)-i:]) {
				return p[:len(p)-i]
			}
			return p
		}
	}
	return p
}

// validStart drops the rest of an incomplete character at the beginning.
func validStart(p []byte) []byte {
	for i := 0; i < utf8.UTFMax; i++ {
		if i == len(p) || utf8.RuneStart(p[i]) {
			return p[i:]
		}
	}
	return p // p is not UTF-8
}

// commandResult describes how a command ended.
type commandResult struct {
	Stdout         string `json:"stdout"`
	Stderr         string `json:"stderr"`
	ExitCode       int    `json:"exit_code"`
	Outcome        string `json:"outcome" jsonschema:"exited, signaled, timed_out, not_found, ..."`
	Signal         string `json:"signal,omitempty" jsonschema:"signal that ended the command"`
	TimedOut       bool   `json:"timed_out"`
	Error          string `json:"error,omitempty" jsonschema:"why the command did not end by itself"`
	StdoutOmitted  int64  `json:"stdout_omitted_bytes,omitempty" jsonschema:"bytes omitted from the middle of stdout"`
	StderrOmitted  int64  `json:"stderr_omitted_bytes,omitempty" jsonschema:"bytes omitted from the middle of stderr"`
	BytesReplaced  bool   `json:"bytes_replaced,omitempty" jsonschema:"output was not UTF-8; U+FFFD replaces invalid bytes"`
	DurationMillis int64  `json:"duration_ms"`
}

// runCommand runs a command until it exits, and keeps an excerpt of its output.
func runCommand(
	ctx context.Context,
	cl *client.Client,
	id string,
	req client.ExecRequest,
	head, tail int,
) (r commandResult, err error) {
	stdout, stderr := newExcerpt(head, tail), newExcerpt(head, tail)
	return runInto(ctx, cl, id, req, stdout, stderr)
}

// ends runs a command until the command exits. It returns the last bytes of stdout and of stderr,
// at most the given number of each, no matter how much the guest sends.
func (c *call) ends(ctx context.Context, id string, req client.ExecRequest, most int) (stdout, stderr []byte,
	err error) {
	out, errs := newExcerpt(0, most), newExcerpt(0, most)
	_, err = c.ExecStream(ctx, id, req, out, errs)
	return out.tail, errs.tail, err
}

func runInto(
	ctx context.Context,
	cl *client.Client,
	id string,
	req client.ExecRequest,
	stdout, stderr *excerptWriter,
) (r commandResult, err error) {
	since := stopwatch()
	end, err := cl.ExecStream(ctx, id, req, stdout, stderr)
	if err != nil {
		return r, err
	}
	return commandResult{
		Stdout: stdout.text(), Stderr: stderr.text(), ExitCode: end.ExitCode, Outcome: end.Outcome, Signal: end.Signal,
		TimedOut: end.TimedOut, Error: shorten(end.Error, maxField),
		StdoutOmitted: stdout.omitted(), StderrOmitted: stderr.omitted(),
		BytesReplaced: stdout.binary() || stderr.binary(), DurationMillis: since().Milliseconds(),
	}, nil
}
