package main

import (
	"context"
	_ "embed"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/agentclient"
)

// loadProgram keeps a set of pages dirty and says how fast it gets on.
//
//go:embed load.py
var loadProgram string

const (
	loadPath  = "/tmp/load.py"
	loadReady = "/tmp/load.ready"
	loadPort  = 7001 // vsock
)

// guestLimit bounds what a guest is asked to do, on a busy emulated host too.
const guestLimit = 3 * time.Minute

// startLoad starts the program in the source and returns when it has written all of its dirtyMiB.
func (s *source) startLoad(ctx context.Context) error {
	if err := s.m.WriteFile(ctx, s.id, loadPath, "root", strings.NewReader(loadProgram)); err != nil {
		return fmt.Errorf("write the load program: %w", err)
	}
	script := fmt.Sprintf("python3 -IS %s %d %d %s >/tmp/load.err 2>&1 </dev/null & "+
		"while [ ! -e %s ]; do kill -0 $! || { cat /tmp/load.err >&2; exit 1; }; sleep 0.1; done",
		loadPath, s.dirtyMiB, loadPort, loadReady, loadReady)
	r, err := s.m.Exec(ctx, s.id, agentclient.ExecRequest{Args: []string{"/bin/sh", "-c", script}, Timeout: guestLimit})
	if err == nil {
		err = r.Err()
	}
	if err == nil && r.ExitCode != 0 {
		err = fmt.Errorf("exit code %d: %s", r.ExitCode, r.Stderr)
	}
	if err != nil {
		return fmt.Errorf("start the load program: %w", err)
	}
	return nil
}

// meter asks a load program how far it is.
type meter struct{ conn net.Conn }

func (s *source) newMeter(ctx context.Context) (*meter, error) {
	ctx, cancel := context.WithTimeout(ctx, guestLimit)
	defer cancel()
	conn, err := agentclient.DialUnix(s.m.VsockSocket(s.id))(ctx, loadPort)
	if err != nil {
		return nil, fmt.Errorf("reach the load program: %w", err)
	}
	return &meter{conn}, nil
}

// mark is the load's progress at some time between asked and answered.
type mark struct {
	asked, answered time.Time
	pages           uint64
}

func (m *meter) read() (mark, error) {
	if err := m.conn.SetDeadline(time.Now().Add(guestLimit)); err != nil {
		return mark{}, err
	}
	var p [8]byte
	k := mark{asked: time.Now()}
	_, err := m.conn.Write(p[:1])
	if err == nil {
		_, err = io.ReadFull(m.conn, p[:])
	}
	if err != nil {
		return k, fmt.Errorf("ask the load program: %w", err)
	}
	k.answered, k.pages = time.Now(), binary.LittleEndian.Uint64(p[:])
	return k, nil
}

// middle is when the pages were counted, give or take half of took.
func (k mark) middle() time.Time   { return k.asked.Add(k.took() / 2) }
func (k mark) took() time.Duration { return k.answered.Sub(k.asked) }

// minGrains is how many times longer than the questions a window must be for its rate to mean something.
const minGrains = 5

// rate returns the pages per second written between two marks, NaN if they are too near to each other.
func rate(a, b mark) float64 {
	window := b.middle().Sub(a.middle())
	if window < minGrains*(a.took()+b.took())/2 {
		return math.NaN()
	}
	return float64(b.pages-a.pages) / window.Seconds()
}

// disturbed is what a branch cost the source: calm and begin enclose time without one, begin and end the branch.
// Lost is the time that the source would have needed for what it has not written.
func disturbed(calm, begin, end mark) (slower float64, lost time.Duration) {
	slower = 1 - rate(begin, end)/rate(calm, begin)
	return slower, time.Duration(slower * float64(end.middle().Sub(begin.middle())))
}
