package store

import (
	"slices"
	"time"
)

// maxIdle is how many unleased snapshots keep their files open for the next lease: the most
// recently used ones. Each may have more than a hundred open files, and a daemon makes any number
// of branches.
const maxIdle = 32

// releasedLocked records the end of a lease of e, and returns a snapshot whose files must be
// closed, or nil.
func (s *Store) releasedLocked(e *entry) (victim *entry) {
	if e.refs.using() > 0 {
		return nil
	}
	e.used = time.Now()
	s.idle = append(slices.DeleteFunc(s.idle, func(i *entry) bool { return i == e }), e)
	if len(s.idle) > maxIdle {
		victim = s.idle[0]
		s.idle = slices.Delete(s.idle, 0, 1)
	}
	return victim
}

// closeIdle closes the files of an unleased snapshot; the next lease opens them again.
func (s *Store) closeIdle(e *entry) {
	e.hotMu.Lock() // delays a new lease, which opens the files again
	defer e.hotMu.Unlock()
	s.mu.Lock()
	busy := e.refs.using() > 0
	s.mu.Unlock()
	if !busy {
		e.closeHot()
	}
}
