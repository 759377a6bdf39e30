package v1

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/forkd/forkd/internal/host/invalid"
)

// console answers with the last output of a guest's console, unchanged.
func (a *api) console(w http.ResponseWriter, r *http.Request) error {
	text, err := a.view(r).Console(r.PathValue("id"))
	if err != nil {
		return err
	}
	plainText(w)
	_, _ = w.Write(text.Bytes) // fails only if the client has left
	return nil
}

// plainText keeps browsers from interpreting the output of a guest as HTML.
func plainText(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
}

// logs is like console, but has the parameters of 'docker logs': the last lines, the lines since a
// given time, and new output until the sandbox ends. If a guest writes faster than the client
// reads, the answer omits output and says so in a line of its own. The guest never waits for the
// client.
func (a *api) logs(w http.ResponseWriter, r *http.Request) error {
	follow, err := boolQuery(r, "follow")
	if err != nil {
		return err
	}
	lines, err := tailQuery(r)
	if err != nil {
		return err
	}
	since, err := timeQuery(r, "since", time.Now())
	if err != nil {
		return err
	}
	log, err := a.view(r).Follow(r.PathValue("id"))
	if err != nil {
		return err
	}
	defer log.Close()
	text, err := log.Begin()
	if err != nil {
		return err
	}
	p := text.Bytes
	if !since.IsZero() {
		p = text.Since(since)
	}
	plainText(w)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no") // tells proxies not to buffer
	rc := http.NewResponseController(w)
	send := func(p []byte) bool {
		_ = rc.SetWriteDeadline(time.Now().Add(a.Face.Limits.Stall)) // fails only in tests
		_, err := w.Write(p)
		return err == nil && rc.Flush() == nil
	}
	if !send(lastLines(p, lines)) || !follow {
		return nil
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(a.Face.Stopping, cancel)()
	for {
		_ = rc.SetWriteDeadline(time.Time{}) // the deadline would end an idle HTTP/2 stream
		p, lost, err := log.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			panic(http.ErrAbortHandler) // abort, so that the client does not conclude that the sandbox has ended
		}
		if lost > 0 && !send(fmt.Appendf(nil, "\n[forkd: %d bytes came faster than they were read, and are left out]\n",
			lost)) {
			return nil
		}
		if !send(p) {
			return nil
		}
	}
}

// tailQuery returns the number of last lines that the query requests.
func tailQuery(r *http.Request) (int, error) {
	text := r.URL.Query().Get("tail")
	if text == "" || text == "all" {
		return math.MaxInt, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, invalid.Errorf("tail", "%.100q: want a number of lines from 0, or all", text)
	}
	return n, nil
}

// lastLines returns the last n lines of p. The last line may lack its line feed.
func lastLines(p []byte, n int) []byte {
	rest := bytes.TrimSuffix(p, []byte("\n"))
	for ; n > 0; n-- {
		i := bytes.LastIndexByte(rest, '\n')
		if i < 0 {
			return p
		}
		rest = rest[:i]
	}
	return p[min(len(rest)+1, len(p)):]
}

// maxTime is the latest time that a query may name, in seconds of Unix time: the end of the year
// 9999.
const maxTime = 253402300799

// timeQuery returns the time in the query parameter with the given name, or zero if the query does
// not have this parameter. As with docker, the parameter is an RFC 3339 time, seconds of Unix time,
// or a duration before now.
func timeQuery(r *http.Request, name string, now time.Time) (at time.Time, err error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return at, nil
	}
	if seconds, err := strconv.ParseFloat(text, 64); err == nil && seconds >= 0 && seconds <= maxTime {
		return time.UnixMicro(int64(seconds * 1e6)), nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	if at, err = time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	return at, invalid.Errorf(name,
		"%.100q: want a time such as 2006-01-02T15:04:05Z, seconds of Unix time, or how long ago, such as 10m", text)
}
