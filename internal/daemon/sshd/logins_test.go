package sshd

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// closing is a connection that records whether it was closed.
type closing struct{ closed bool }

func (c *closing) Close() error {
	c.closed = true
	return nil
}

// A new connection replaces the oldest connection of its peer or, if there are too many in total,
// the oldest connection of the peer that has the most.
func TestOldestLoginGivesWay(t *testing.T) {
	l := &logins{most: 5, mostOfPeer: 3}
	conns := map[string]*closing{}
	var attempts []*attempt
	for _, step := range []struct{ enter, closes string }{
		{"a1", ""}, {"b1", ""}, {"b2", ""}, {"b3", ""}, {"b4", "b1"}, {"c1", ""},
		{"c2", "b2"}, {"d1", "b3"}, {"e1", "c1"}, {"f1", "a1"},
	} {
		c := &closing{}
		conns[step.enter] = c
		attempts = append(attempts, l.enter(c, step.enter[:1]))
		var closed []string
		for name, c := range conns {
			if c.closed {
				closed = append(closed, name)
				delete(conns, name)
			}
		}
		if got := strings.Join(closed, " "); got != step.closes {
			t.Errorf("%s closes %q, want %q", step.enter, got, step.closes)
		}
	}
	had := 0
	for _, a := range attempts {
		if a.leave() {
			had++
		}
	}
	if had != 5 || len(l.open) != 0 {
		t.Errorf("%d had a place; %d are left", had, len(l.open))
	}
}

// The processes of clients that have not logged in take at most half of the memory of all
// processes.
func TestLoginsFitMemory(t *testing.T) {
	for _, c := range []struct {
		memory uint64
		want   int
	}{{0, 64}, {1, 1}, {512 << 20, 6}, {2 << 30, 25}, {64 << 30, 64}} {
		s := New(Config{Process: Process{Memory: c.memory}})
		if got := s.logins.most; got != c.want {
			t.Errorf("%d MiB: %d connections, want %d", c.memory>>20, got, c.want)
		}
	}
}

// counter counts processes that were out of memory.
type counter struct {
	Counter
	large int
}

func (c *counter) SSHOutOfMemory() { c.large++ }

// Clients that have not logged in cannot fill the log.
func TestLinesAreBounded(t *testing.T) {
	var out bytes.Buffer
	s := New(Config{Log: slog.New(slog.NewTextHandler(&out, nil))})
	const all = 10 * linesAtOnce
	begun := time.Now()
	for range all {
		s.log(slog.LevelError, "refused")
	}
	most := linesAtOnce + int(time.Since(begun).Seconds()*linesPerSecond) + 1
	n := strings.Count(out.String(), "\n")
	if n < linesAtOnce || n > most || int(s.leftOut.Load()) > all-linesAtOnce {
		t.Errorf("%d lines, at most %d are expected, and %d are left out", n, most, s.leftOut.Load())
	}
}

// Each process that the kernel has killed is counted once.
func TestKilledProcessesAreCounted(t *testing.T) {
	counts, kills := &counter{}, uint64(0)
	s := New(Config{Counts: counts})
	s.oomKills = func() uint64 { return kills }
	for _, step := range []struct {
		kills uint64
		want  int
	}{{0, 0}, {2, 2}, {2, 2}, {3, 3}, {0, 3}} {
		kills = step.kills
		if s.killed(); counts.large != step.want {
			t.Errorf("%d kills are counted as %d, want %d", kills, counts.large, step.want)
		}
	}
}
