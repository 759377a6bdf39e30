package history

import "time"

// kind says how readings of a figure become points.
type kind int

const (
	level kind = iota // the figure is a present value; the point for a minute has the highest value
	count             // the figure is a total; a point has its growth per second (for a minute, the mean)
)

// series is the history of one sandbox, or of the host.
type series struct {
	kinds          []kind
	second, minute ring

	last   []float64     // the previous reading; nil: there is no reading from which growth can be measured
	lastAt time.Duration // time of the reading in the field last

	sums []float32 // for the current minute: of a level, the highest value; of a count, the sum of the values
	n    int       // number of points in the current minute
	at   cell      // time of the latest point in the current minute

	looked  time.Duration // when the sandbox was last read
	resting bool          // the sandbox did not run when it was last read
}

func newSeries(kinds []kind) *series {
	return &series{kinds: kinds, second: ring{width: len(kinds)}, minute: ring{width: len(kinds)}}
}

// add adds a reading. Growth is measured from the previous reading, so three kinds of readings make
// no point: the first one, the first after a rest, and a reading whose totals are lower than
// before. Totals become lower when the process that had the old totals has ended.
func (s *series) add(at time.Duration, reading []float64, mostMinutes int) {
	last, passed := s.last, at-s.lastAt
	s.last, s.lastAt = reading, at
	if last == nil || passed <= 0 {
		return
	}
	values := make([]float32, len(s.kinds))
	for i, kind := range s.kinds {
		values[i] = float32(reading[i])
		if kind == count {
			if reading[i] < last[i] {
				return
			}
			values[i] = float32((reading[i] - last[i]) / passed.Seconds())
		}
	}
	now := cellOf(at)
	s.second.forget(now - min(now, cellOf(KeptFine)))
	s.second.push(now, values, maxSeconds)
	if s.n > 0 && s.at/cellOf(time.Minute) != now/cellOf(time.Minute) {
		s.minute.forget(now - min(now, cellOf(KeptCoarse)))
		s.minute.push(s.at, s.ofMinute(), mostMinutes)
		s.sums, s.n = nil, 0
	}
	if s.sums == nil {
		s.sums = make([]float32, len(s.kinds))
	}
	for i, kind := range s.kinds {
		if kind == count {
			s.sums[i] += values[i]
		} else {
			s.sums[i] = max(s.sums[i], values[i])
		}
	}
	s.n, s.at = s.n+1, now
}

// ofMinute returns the values of the current minute.
func (s *series) ofMinute() []float32 {
	values := make([]float32, len(s.kinds))
	for i, kind := range s.kinds {
		values[i] = s.sums[i]
		if kind == count {
			values[i] /= float32(s.n)
		}
	}
	return values
}

// rest is called instead of add while the sandbox does not run. It reports whether the series has
// become empty.
func (s *series) rest(at time.Duration) (empty bool) {
	s.last = nil
	now := cellOf(at)
	s.second.forget(now - min(now, cellOf(KeptFine)))
	s.minute.forget(now - min(now, cellOf(KeptCoarse)))
	return s.second.n == 0 && s.minute.n == 0 && (s.n == 0 || s.at+cellOf(KeptCoarse) < now)
}

// each calls f for the points of one resolution, in the time range [from, to], oldest first.
func (s *series) each(from, to cell, minutes bool, f func(cell, []float32)) {
	r := &s.second
	if minutes {
		r = &s.minute
	}
	for i := range r.n {
		if at, values := r.at(i); at >= from && at <= to {
			f(at, values)
		}
	}
	if minutes && s.n > 0 && s.at >= from && s.at <= to {
		f(s.at, s.ofMinute())
	}
}
