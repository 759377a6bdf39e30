package difftree

import (
	"bytes"
	"fmt"
	"slices"
)

// context is the number of equal lines around a change in a hunk.
const context = 3

// match says that n lines of the old text, beginning with line a, equal n lines of the new text,
// beginning with line b.
type match struct{ a, b, n int }

// unified returns the hunks of a unified diff, and the numbers of lines that the diff adds and
// deletes. For texts of n lines it takes O(n log n) steps in the worst case. To stay within this
// bound, it does not always find the shortest possible diff.
func unified(before, after []byte) (patch []byte, added, deleted int) {
	old, now := lines(before), lines(after)
	matches := append(matchLines(old, now), match{len(old), len(now), 0})
	var out bytes.Buffer
	h := hunk{old: old, now: now}
	for _, m := range matches {
		h.change(m.a, m.b)
		last := m.a+m.n == len(old) && m.b+m.n == len(now)
		switch {
		case !h.changed:
			h.from(m.a+max(0, m.n-context), m.b+max(0, m.n-context))
		case m.n > 2*context || last && m.n > context:
			h.keep(context)
			h.write(&out)
			h.from(m.a+m.n-context, m.b+m.n-context)
		}
		h.keep(m.a + m.n - h.a)
	}
	if h.changed {
		h.write(&out)
	}
	return out.Bytes(), h.added, h.deleted
}

// hunk is a hunk under construction.
type hunk struct {
	old, now       [][]byte
	startA, startB int // first line of the hunk in the old text and in the new text
	a, b           int // first line after the hunk in the old text and in the new text
	text           bytes.Buffer
	changed        bool
	added, deleted int // numbers of lines in all hunks so far
}

// from(a, b) begins a hunk at line a of the old text and line b of the new text.
func (h *hunk) from(a, b int) {
	h.startA, h.startB, h.a, h.b, h.changed = a, b, a, b, false
	h.text.Reset()
}

// change adds a change to the hunk: the old lines before line a are replaced by the new lines before
// line b.
func (h *hunk) change(a, b int) {
	for ; h.a < a; h.a++ {
		h.line('-', h.old[h.a])
		h.changed = true
		h.deleted++
	}
	for ; h.b < b; h.b++ {
		h.line('+', h.now[h.b])
		h.changed = true
		h.added++
	}
}

// keep adds n equal lines.
func (h *hunk) keep(n int) {
	for range n {
		h.line(' ', h.old[h.a])
		h.a++
		h.b++
	}
}

func (h *hunk) line(mark byte, text []byte) {
	h.text.WriteByte(mark)
	h.text.Write(text)
	if !bytes.HasSuffix(text, []byte("\n")) {
		h.text.WriteString("\n\\ No newline at end of file\n")
	}
}

func (h *hunk) write(out *bytes.Buffer) {
	fmt.Fprintf(out, "@@ -%s +%s @@\n", span(h.startA, h.a), span(h.startB, h.b))
	out.Write(h.text.Bytes())
}

// span returns a range of lines in the form of a unified diff, which counts from 1.
func span(start, end int) string {
	switch end - start {
	case 0:
		return fmt.Sprintf("%d,0", start)
	case 1:
		return fmt.Sprint(start + 1)
	}
	return fmt.Sprintf("%d,%d", start+1, end-start)
}

// lines splits a text after each line end.
func lines(text []byte) [][]byte {
	l := bytes.SplitAfter(text, []byte("\n"))
	if len(l[len(l)-1]) == 0 {
		l = l[:len(l)-1]
	}
	return l
}

// matchLines returns equal lines of two texts in ascending order. Between two matches, at least one
// of the texts has lines that do not match.
func matchLines(old, now [][]byte) []match {
	first := 0
	for first < len(old) && first < len(now) && bytes.Equal(old[first], now[first]) {
		first++
	}
	endA, endB := len(old), len(now)
	for endA > first && endB > first && bytes.Equal(old[endA-1], now[endB-1]) {
		endA--
		endB--
	}
	found := []match{{0, 0, first}}
	for _, anchor := range anchors(old[first:endA], now[first:endB]) {
		a, b := first+anchor.a, first+anchor.b
		last := found[len(found)-1]
		lowA, lowB := last.a+last.n, last.b+last.n
		if a < lowA || b < lowB {
			continue // the last match contains the anchor
		}
		n := 1
		for a > lowA && b > lowB && bytes.Equal(old[a-1], now[b-1]) {
			a, b, n = a-1, b-1, n+1
		}
		for a+n < endA && b+n < endB && bytes.Equal(old[a+n], now[b+n]) {
			n++
		}
		if a == lowA && b == lowB {
			found[len(found)-1].n += n
			continue
		}
		found = append(found, match{a, b, n})
	}
	last := &found[len(found)-1]
	if last.a+last.n == endA && last.b+last.n == endB {
		last.n += len(old) - endA
	} else if endA < len(old) {
		found = append(found, match{endA, endB, len(old) - endA})
	}
	if found[0].n == 0 {
		found = found[1:]
	}
	return found
}

// anchors returns lines that occur exactly once in each text, and have the same order in both
// texts. It returns the longest such list.
func anchors(old, now [][]byte) []match {
	type places struct{ inOld, inNow, a, b int }
	of := make(map[string]*places, len(old))
	at := func(line []byte) *places {
		p := of[string(line)]
		if p == nil {
			p = &places{}
			of[string(line)] = p
		}
		return p
	}
	for i, l := range old {
		p := at(l)
		p.inOld++
		p.a = i
	}
	for i, l := range now {
		p := at(l)
		p.inNow++
		p.b = i
	}
	var unique []match
	for i, l := range old {
		if p := of[string(l)]; p.inOld == 1 && p.inNow == 1 {
			unique = append(unique, match{i, p.b, 1})
		}
	}
	return ascending(unique)
}

// ascending returns the longest selection of matches in which match.b ascends. The matches keep
// their order.
func ascending(list []match) []match {
	var ends []int // ends[n] is the index of the match with the smallest b that can end n+1 selected matches
	// before[i] is the index of the match before match i, in the longest selection that ends with
	// match i.
	before := make([]int, len(list))
	for i, m := range list {
		n, _ := slices.BinarySearchFunc(ends, m.b, func(end, b int) int { return list[end].b - b })
		before[i] = -1
		if n > 0 {
			before[i] = ends[n-1]
		}
		if n == len(ends) {
			ends = append(ends, i)
		} else {
			ends[n] = i
		}
	}
	best := make([]match, len(ends))
	if len(ends) > 0 {
		for i, n := ends[len(ends)-1], len(ends)-1; n >= 0; i, n = before[i], n-1 {
			best[n] = list[i]
		}
	}
	return best
}
