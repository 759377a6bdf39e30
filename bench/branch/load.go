package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// loadProgram keeps a set of pages dirty and notes how fast it gets on.
//
//go:embed load.py
var loadProgram string

const (
	loadPath = "/tmp/load.py"
	loadLog  = "/tmp/load.json"
)

// startLoad starts the program in the guest and returns when it has written all of its dirtyMiB.
func (v *vm) startLoad(ctx context.Context, dirtyMiB int) error {
	if err := v.agent.WriteFile(ctx, loadPath, "root", strings.NewReader(loadProgram)); err != nil {
		return fmt.Errorf("write the load program: %w", err)
	}
	_, err := v.sh(ctx, fmt.Sprintf("python3 %s %d %s >/tmp/load.err 2>&1 & echo $! > /tmp/load.pid; "+
		"while [ ! -e %s.ready ]; do kill -0 $! || { cat /tmp/load.err >&2; exit 1; }; sleep 0.1; done",
		loadPath, dirtyMiB, loadLog, loadLog))
	return err
}

// mark is the load's progress at a time of the guest's clock.
type mark struct {
	at    float64 // seconds since 1970
	pages float64
}

// stopLoad ends the program and returns its progress.
func (v *vm) stopLoad(ctx context.Context) ([]mark, error) {
	text, err := v.sh(ctx, fmt.Sprintf("kill -USR1 $(cat /tmp/load.pid); "+
		"while kill -0 $(cat /tmp/load.pid) 2>/dev/null; do sleep 0.1; done; cat %s", loadLog))
	if err != nil {
		return nil, err
	}
	return parseMarks([]byte(text))
}

func parseMarks(p []byte) ([]mark, error) {
	var pairs [][2]float64
	if err := json.Unmarshal(p, &pairs); err != nil {
		return nil, fmt.Errorf("progress of the load: %w", err)
	}
	marks := make([]mark, len(pairs))
	for i, pair := range pairs {
		marks[i] = mark{pair[0], pair[1]}
	}
	return marks, nil
}

// clock is how the guest's time of day relates to the host's.
type clock struct {
	ahead float64 // seconds
	grain float64 // the error of ahead is at most half of it
}

// readClock compares the clocks by the fastest of a few commands.
func (v *vm) readClock(ctx context.Context) (clock, error) {
	best := clock{grain: math.Inf(1)}
	for range 5 {
		before := time.Now()
		text, err := v.sh(ctx, "date +%s.%N")
		if err != nil {
			return best, err
		}
		after := time.Now()
		guest, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return best, fmt.Errorf("the guest's time: %w", err)
		}
		if took := after.Sub(before).Seconds(); took < best.grain {
			best = clock{ahead: guest - (seconds(before)+seconds(after))/2, grain: took}
		}
	}
	return best, nil
}

// minGrains is how many times the clocks' grain a window must last for its rate to mean something.
const minGrains = 5

// rate returns the pages per second written between two times of the host's clock, NaN if the window is too short for
// the clocks or not covered by marks.
func rate(marks []mark, c clock, from, to time.Time) float64 {
	if to.Sub(from).Seconds() < minGrains*c.grain {
		return math.NaN()
	}
	a, ok1 := progressAt(marks, seconds(from)+c.ahead)
	b, ok2 := progressAt(marks, seconds(to)+c.ahead)
	if !ok1 || !ok2 {
		return math.NaN()
	}
	return (b - a) / to.Sub(from).Seconds()
}

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// progressAt interpolates between marks; it is false outside of them.
func progressAt(marks []mark, at float64) (float64, bool) {
	for i := 1; i < len(marks); i++ {
		a, b := marks[i-1], marks[i]
		if a.at <= at && at <= b.at {
			return a.pages + (b.pages-a.pages)*(at-a.at)/(b.at-a.at), true
		}
	}
	return 0, false
}
