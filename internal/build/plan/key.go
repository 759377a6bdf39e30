package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
)

// keyVersion is part of every key. A change of what a step means, or of how it is encoded here, raises
// it, so that no snapshot of an earlier meaning is found.
const keyVersion = 2

// Keys returns the key of every step, in hex. agent and format are versions of what is in every
// snapshot besides the steps' work: a snapshot with another agent or of another format is another
// snapshot.
func (p *Plan) Keys(agent, format string) ([]string, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	keys := make([]string, len(p.Steps))
	for i := range p.Steps {
		s := &p.Steps[i]
		h := sha256.New()
		part(h, fmt.Sprintf("forkd step %d", keyVersion))
		part(h, agent)
		part(h, format)
		if s.From >= 0 {
			part(h, keys[s.From])
		}
		c := s.canonical()
		text, err := json.Marshal(c)
		if err != nil {
			return nil, err
		}
		part(h, string(text))
		for _, raw := range undistinguished(c) {
			part(h, raw)
		}
		for _, n := range s.Needs() {
			part(h, keys[n])
		}
		keys[i] = hex.EncodeToString(h.Sum(nil))
	}
	return keys, nil
}

// part adds a text to a hash so that no two lists of texts are the same bytes.
func part(h hash.Hash, text string) { fmt.Fprintf(h, "%d:%s\n", len(text), text) }

// canonical returns what a step does. Not in it: its name and line, which say nothing of that, and the
// indexes of other steps, for which their keys stand.
func (s *Step) canonical() *Step {
	c := *s
	c.Name, c.Line, c.From = "", 0, 0
	if s.Base != nil { // the digest says what the name meant
		b := *s.Base
		if b.Snapshot != "" {
			b.Snapshot = "snapshot"
		} else {
			b.Image = "image"
		}
		c.Base = &b
	}
	if s.Copy != nil {
		cp := *s.Copy
		cp.Sources = make([]Source, len(s.Copy.Sources))
		for i, src := range s.Copy.Sources {
			cp.Sources[i] = src.canonical()
		}
		c.Copy = &cp
	}
	if s.Run != nil {
		r := *s.Run
		r.Mounts = make([]Mount, len(s.Run.Mounts))
		for i, m := range s.Run.Mounts {
			if m.Source != nil {
				src := m.Source.canonical()
				m.Source = &src
			}
			r.Mounts[i] = m
		}
		c.Run = &r
	}
	return &c
}

// canonical is a source without indexes of steps, and without where the context has a file: content is
// what counts.
func (s Source) canonical() Source {
	if s.Step != nil {
		zero := 0
		s.Step = &zero
	}
	files := s.Files
	s.Files = nil
	for _, f := range files {
		f.Path = ""
		s.Files = append(s.Files, f)
	}
	return s
}
