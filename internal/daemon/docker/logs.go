package docker

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/agentclient"
)

// logQuery has the query parameters of a request for logs.
type logQuery struct {
	streams      map[agentclient.Stream]bool
	tail         int
	since, until time.Time // zero: no bound
	stamps       bool
	follow       bool
}

func readLogQuery(r *http.Request, tty bool) (q logQuery, err error) {
	if q.streams = wantedStreams(r, tty); !boolQuery(r, "stdout") && !boolQuery(r, "stderr") {
		return q, face.BadRequest("Bad parameters: you must choose at least one stream: stdout or stderr")
	}
	q.stamps, q.follow, q.tail = boolQuery(r, "timestamps"), boolQuery(r, "follow"), math.MaxInt
	if text := r.URL.Query().Get("tail"); text != "" && text != "all" {
		if q.tail, err = intQuery(r, "tail", 0, math.MinInt32, math.MaxInt32); err != nil {
			return q, err
		}
		if q.tail < 0 {
			q.tail = math.MaxInt
		}
	}
	if q.since, err = timeQuery(r, "since"); err != nil {
		return q, err
	}
	q.until, err = timeQuery(r, "until")
	return q, err
}

// maxTime is the latest time that a query may name, in seconds of Unix time: the year 9999.
const maxTime = 253402300799

// timeQuery returns the time in a query parameter. If the parameter is missing or 0, it returns the
// zero time.
func timeQuery(r *http.Request, name string) (at time.Time, err error) {
	text := r.URL.Query().Get(name)
	if text == "" || text == "0" {
		return at, nil
	}
	return parseTime(name, text)
}

// parseTime parses seconds of Unix time with an optional fraction. In errors, the text is called by
// the given name.
func parseTime(name, text string) (at time.Time, err error) {
	whole, fraction, _ := strings.Cut(text, ".")
	seconds, err := strconv.ParseInt(whole, 10, 64)
	nanos, err2 := strconv.ParseInt((fraction + "000000000")[:9], 10, 64)
	if err != nil || err2 != nil || seconds < 0 || seconds > maxTime || nanos < 0 {
		return at, face.BadRequest("%s: %.100q: want seconds of Unix time", name, text)
	}
	return time.Unix(seconds, nanos), nil
}

// has() reports whether the client wants the output of a stream at a time.
func (q *logQuery) has(from agentclient.Stream, at time.Time) bool {
	return q.streams[from] && !at.Before(q.since) && (q.until.IsZero() || !at.After(q.until))
}

// logs() answers with the output of a container's main process. If the container has no main
// process, it answers with the console of the virtual machine.
func (s *Server) logs(w http.ResponseWriter, r *http.Request) error {
	c, err := s.find(r)
	if err != nil {
		return err
	}
	sp := specOf(c.info)
	q, err := readLogQuery(r, sp.Config.TTY)
	if err != nil {
		return err
	}
	kept, reader, err := c.out.readAll()
	if err != nil {
		return err
	}
	defer reader.close()
	if !q.follow {
		reader.close() // so that the process does not wait for the client
	}
	out := &logWriter{w: w, rc: http.NewResponseController(w), raw: sp.Config.TTY, stamps: q.stamps,
		stall:  s.Face.Limits.Stall,
		within: map[agentclient.Stream]bool{}}
	w.Header().Set("Content-Type", streamType(r, sp.Config.TTY))
	if len(sp.args()) == 0 {
		return s.console(r, c, q, out)
	}
	list := kept[:0:0]
	for _, e := range kept {
		if q.has(e.from, e.at) {
			list = append(list, e)
		}
	}
	if out.flush() != nil {
		return nil
	}
	for _, e := range list[max(0, len(list)-q.tail):] {
		if out.write(e.from, e.at, e.text) != nil {
			return nil // the client has left
		}
	}
	if out.flush() != nil || !q.follow || c.status() != running && c.status() != paused {
		return nil
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	if !q.until.IsZero() {
		ctx, cancel = context.WithDeadline(ctx, q.until)
		defer cancel()
	}
	for {
		out.idle()
		select {
		case k := <-reader.chunks:
			if q.has(k.from, k.at) && (out.write(k.from, k.at, k.text) != nil || out.flush() != nil) {
				return nil
			}
		case <-reader.ended:
			return nil
		case <-ctx.Done():
			if s.life.Err() != nil {
				panic(http.ErrAbortHandler) // the client must not conclude that the container has ended
			}
			return nil
		}
	}
}

// console answers with the console of a container's virtual machine.
func (s *Server) console(r *http.Request, c found, q logQuery, out *logWriter) error {
	log, err := s.view(r).Follow(c.id)
	if err != nil {
		return err
	}
	defer log.Close()
	text, err := log.Begin()
	if err != nil {
		return err
	}
	p := text.Bytes
	if !q.since.IsZero() {
		p = text.Since(q.since)
	}
	lines := bytes.SplitAfter(p, []byte("\n"))
	if last := len(lines) - 1; len(lines[last]) == 0 {
		lines = lines[:last]
	}
	for _, line := range lines[max(0, len(lines)-q.tail):] {
		if out.write(agentclient.Stdout, time.Now(), line) != nil {
			return nil
		}
	}
	if out.flush() != nil || !q.follow {
		return nil
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	for {
		out.idle()
		p, _, err := log.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		if out.write(agentclient.Stdout, time.Now(), p) != nil || out.flush() != nil {
			return nil
		}
	}
}

// logWriter writes output to the answer of a request.
type logWriter struct {
	w      http.ResponseWriter
	rc     *http.ResponseController
	raw    bool // the output is not divided into frames
	stamps bool
	stall  time.Duration               // maximum time for which a write waits for the client
	within map[agentclient.Stream]bool // whether the last output of a stream ended within a line
}

// write writes output of a stream, each line in a frame of its own, as Docker does. With timestamps,
// each line begins with its time.
func (l *logWriter) write(from agentclient.Stream, at time.Time, text []byte) error {
	var out []byte
	for line := range bytes.SplitAfterSeq(text, []byte("\n")) {
		if len(line) == 0 {
			continue
		}
		if l.stamps && !l.within[from] {
			stamp := append(at.UTC().AppendFormat(nil, stampFormat), ' ')
			line = append(stamp, line...)
		}
		l.within[from] = !bytes.HasSuffix(line, []byte("\n"))
		if !l.raw {
			line = frame(from, line)
		}
		out = append(out, line...)
	}
	_ = l.rc.SetWriteDeadline(time.Now().Add(l.stall)) // connections of some tests have no deadlines
	_, err := l.w.Write(out)
	return err
}

// stampFormat has nine digits for the fraction of a second, so that all times have the same length.
const stampFormat = "2006-01-02T15:04:05.000000000Z07:00"

func (l *logWriter) flush() error {
	_ = l.rc.SetWriteDeadline(time.Now().Add(l.stall))
	return l.rc.Flush()
}

// idle removes the deadline while there is no output.
func (l *logWriter) idle() { _ = l.rc.SetWriteDeadline(time.Time{}) }
