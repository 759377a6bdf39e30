// Package byage keeps objects in the order of their creation. It finds an object by its ID, and
// returns a page of the list without sorting the whole list.
package byage

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

// Place is the place of an object in the order. Older objects come first, and objects with the same
// time are ordered by their IDs.
type Place struct {
	Created time.Time
	ID      string
}

func (p Place) compare(q Place) int {
	return cmp.Or(p.Created.Compare(q.Created), strings.Compare(p.ID, q.ID))
}

// Set holds the objects, each with its own ID. The zero Set is empty. The caller must hold a lock
// even for methods that only look up objects, because every method may change the Set.
type Set[V any] struct {
	byID  map[string]*member[V]
	order []*member[V]
	// number of members at the beginning of order that are sorted; the other members were added
	// since. A starting daemon adds its sandboxes in any order, so Add must not move all newer
	// objects at each call.
	sorted int
}

type member[V any] struct {
	place Place
	v     V
}

// Add adds an object. It replaces an object with the same ID.
func (s *Set[V]) Add(at Place, v V) {
	s.Delete(at.ID)
	if s.byID == nil {
		s.byID = make(map[string]*member[V])
	}
	m := &member[V]{at, v}
	s.byID[at.ID] = m
	s.order = append(s.order, m)
}

// Get returns the object with the given ID. If there is none, it returns the zero value.
func (s *Set[V]) Get(id string) (v V) {
	if m := s.byID[id]; m != nil {
		v = m.v
	}
	return v
}

// Delete removes the object with the given ID, if there is one.
func (s *Set[V]) Delete(id string) {
	m := s.byID[id]
	if m == nil {
		return
	}
	i, _ := s.find(m.place)
	s.order = slices.Delete(s.order, i, i+1)
	s.sorted--
	delete(s.byID, id)
}

// Len returns the number of objects.
func (s *Set[V]) Len() int { return len(s.order) }

// IDs returns the IDs of all objects in any order.
func (s *Set[V]) IDs() []string { return slices.Collect(maps.Keys(s.byID)) }

// After returns the objects after a place, oldest first, but at most the given number. All objects are
// after the zero Place.
func (s *Set[V]) After(at Place, most int) []V {
	i, found := s.find(at)
	if found {
		i++
	}
	page := make([]V, 0, min(most, len(s.order)-i))
	for _, m := range s.order[i:][:cap(page)] {
		page = append(page, m.v)
	}
	return page
}

// find returns the index of the first object that is not before a place, and whether it is at the
// place.
func (s *Set[V]) find(at Place) (i int, found bool) {
	s.sort()
	return slices.BinarySearchFunc(s.order, at, func(m *member[V], at Place) int { return m.place.compare(at) })
}

// sort sorts the objects that were added since the previous call. It moves only these objects, and
// objects that are newer than the oldest of them.
func (s *Set[V]) sort() {
	if s.sorted == len(s.order) {
		return
	}
	late := slices.Clone(s.order[s.sorted:])
	slices.SortFunc(late, func(a, b *member[V]) int { return a.place.compare(b.place) })
	i := s.sorted - 1 // last of the sorted objects that are not in their final place yet
	for j := len(late) - 1; j >= 0; {
		to := i + j + 1
		if i >= 0 && s.order[i].place.compare(late[j].place) > 0 {
			s.order[to] = s.order[i]
			i--
		} else {
			s.order[to] = late[j]
			j--
		}
	}
	s.sorted = len(s.order)
}
