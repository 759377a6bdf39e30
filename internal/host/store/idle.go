package store

import (
	"slices"
	"time"
)

// maxIdle is how many snapshots without a lease keep their files open for the next lease. These are
// the most recently used snapshots. The number is limited because a snapshot may have more than a
// hundred open files, and a daemon can make any number of branches.
const maxIdle = 32

// releasedLocked records that the last lease of e has ended. If too many snapshots without a lease
// now keep their files open, it returns a snapshot whose files must be closed. Otherwise it returns
// nil.
func (s *Store) releasedLocked(e *entry) (victim *entry) {
	if e.refs.using() > 0 {
		return nil
	}
	e.used = time.Now()
	if len(e.keys) > 0 || e.served {
		return e // close decrypted files, which must not stay in RAM, and served files, so that their process can exit
	}
	s.idle = append(slices.DeleteFunc(s.idle, func(i *entry) bool { return i == e }), e)
	if len(s.idle) > maxIdle {
		victim = s.idle[0]
		s.idle = slices.Delete(s.idle, 0, 1)
	}
	return victim
}

// closeIdle closes the files of a snapshot without a lease. The next lease opens them again.
func (s *Store) closeIdle(e *entry) {
	e.hotMu.Lock() // a new lease takes this lock to open the files
	defer e.hotMu.Unlock()
	s.mu.Lock()
	busy := e.refs.using() > 0
	e.served = e.served && busy
	s.mu.Unlock()
	if !busy {
		e.closeHot()
	}
}
