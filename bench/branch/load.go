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

	"github.com/forkd/forkd/internal/host/agentclient"
)

// loadProgram is a program that keeps writing a set of pages and reports its progress.
//
//go:embed load.py
var loadProgram string

const (
	loadPath  = "/tmp/load.py"
	loadReady = "/tmp/load.ready"
	loadPort  = 7001 // vsock
)

// guestLimit bounds the time of a request to a guest. It is long enough for a busy emulated host.
const guestLimit = 3 * time.Minute

// startLoad starts the program in the source. It returns when the program has written all dirtyMiB
// once.
func (s *source) startLoad(ctx context.Context) error {
	script := fmt.Sprintf("python3 -IS %s %d %d %s >/tmp/load.err 2>&1 </dev/null & "+
		"while [ ! -e %s ]; do kill -0 $! || { cat /tmp/load.err >&2; exit 1; }; sleep 0.1; done",
		loadPath, s.dirtyMiB, loadPort, loadReady, loadReady)
	var r agentclient.ExecResult
	err := s.m.Use(ctx, s.id, "load", func(ctx context.Context, dial agentclient.DialFunc) (err error) {
		guest := agentclient.New(dial)
		if err := guest.WriteFile(ctx, loadPath, "root", strings.NewReader(loadProgram)); err != nil {
			return err
		}
		r, err = guest.Exec(ctx, agentclient.ExecRequest{Args: []string{"/bin/sh", "-c", script}, Timeout: guestLimit})
		return err
	})
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

// meter asks a load program for its progress.
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

// mark is the load's progress.
type mark struct {
	at    time.Duration // on the guest's clock, which does not stop while a branch stops the vCPUs
	pages uint64
	took  time.Duration // duration of the request for the progress
}

// read asks for the load's progress.
func (m *meter) read() (mark, error) {
	var p [16]byte
	asked := time.Now()
	err := m.send('?')
	if err == nil {
		_, err = io.ReadFull(m.conn, p[:])
	}
	if err != nil {
		return mark{}, fmt.Errorf("ask the load program: %w", err)
	}
	return mark{time.Duration(binary.LittleEndian.Uint64(p[:])), binary.LittleEndian.Uint64(p[8:]), time.Since(asked)}, nil
}

// send sends the program a command: stop ('s') or continue ('c').
func (m *meter) send(command byte) error {
	if err := m.conn.SetDeadline(time.Now().Add(guestLimit)); err != nil {
		return err
	}
	_, err := m.conn.Write([]byte{command})
	return err
}

// lostWork returns how many seconds of work the load lost between begin and end. The parameters
// calm, begin and end are readings of the load's progress, in this order. lostWork assumes that
// without the branch the load would have continued at the speed that it had between calm and begin.
// The load also runs while its progress is read. If the two readings begin and end together took
// more than twice as long as the measured branch, the result would be useless, and lostWork returns
// NaN.
func lostWork(calm, begin, end mark, branch time.Duration) float64 {
	if begin.took+end.took > 2*branch {
		return math.NaN()
	}
	perPage := (begin.at - calm.at).Seconds() / float64(begin.pages-calm.pages)
	return (end.at - begin.at).Seconds() - perPage*float64(end.pages-begin.pages)
}
