package plan

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"slices"
)

// keyVersion is part of every key. It must be increased when the meaning of a step or the encoding
// here changes, so that builds do not use snapshots with the earlier meaning.
const keyVersion = 2

// Keys returns the keys of all steps, in hex. The parameters agent and format are the versions of
// the agent and of the snapshot format. They are part of every key because every snapshot depends
// on them.
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
		if err := s.encode(h); err != nil {
			return nil, err
		}
		if p.Network != nil && (s.Run != nil || s.Warm != nil) {
			text, err := json.Marshal(p.Network)
			if err != nil {
				return nil, err
			}
			part(h, "network "+string(text))
		}
		for _, n := range s.Needs() {
			part(h, keys[n])
		}
		keys[i] = hex.EncodeToString(h.Sum(nil))
	}
	return keys, nil
}

// part adds a text to a hash, together with its length. So different lists of texts have different
// hashes.
func part(h hash.Hash, text string) {
	begin(h, len(text))
	_, _ = io.WriteString(h, text) // writing to a hash never fails
	_, _ = io.WriteString(h, "\n")
}

func begin(h hash.Hash, size int) { fmt.Fprintf(h, "%d:", size) }

// encode adds the effect of a step to a hash. It adds the JSON of the step, and also those texts of
// the step that are not valid UTF-8, because different texts of this kind may have the same JSON.
// It encodes the files of sources one by one, because they may be most of the build context.
func (s *Step) encode(h hash.Hash) error {
	c := s.canonical()
	short, lists := c.withoutFiles()
	text, err := json.Marshal(short)
	if err != nil {
		return err
	}
	pieces := bytes.Split(text, listMark)
	if len(pieces) != len(lists)+1 {
		return fmt.Errorf("encode step %s: %d lists of files, want %d", s.Name, len(pieces)-1, len(lists))
	}
	write := func(w io.Writer) error {
		for i, piece := range pieces {
			if i > 0 {
				if err := lists[i-1].encodeFiles(w); err != nil {
					return err
				}
			}
			if _, err := w.Write(piece); err != nil {
				return err
			}
		}
		return nil
	}
	var size counter
	if err := write(&size); err != nil {
		return err
	}
	begin(h, int(size))
	if err := write(h); err != nil {
		return err
	}
	_, _ = io.WriteString(h, "\n")
	undistinguished(c, func(raw string) { part(h, raw) })
	return nil
}

// counter is a writer that counts bytes.
type counter int

// Write implements io.Writer.
func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// encoded is a file in the form that a step's JSON contains. It omits the file's path in the build
// context, because only the content matters.
type encoded struct {
	Path   string `json:"path"` // always empty
	To     string `json:"to,omitempty"`
	Kind   string `json:"kind"`
	Mode   uint32 `json:"mode"`
	Size   int64  `json:"size,omitempty"`
	Digest string `json:"digest,omitempty"`
	Link   string `json:"link,omitempty"`
}

// listMark is the JSON of the zero File. In the JSON of a step, it stands for all files of a
// source. No text in JSON equals it, because JSON escapes quotes.
var listMark = []byte(`{"path":"","kind":"","mode":0}`)

// encodeFiles writes the files of a source as a JSON list without brackets.
func (s *Source) encodeFiles(w io.Writer) error {
	var buf bytes.Buffer
	var e encoded
	to := json.NewEncoder(&buf)
	for i := range s.Files {
		f := &s.Files[i]
		if i > 0 {
			buf.WriteByte(',')
		}
		e = encoded{To: s.Name(f), Kind: f.Kind, Mode: f.Mode, Size: f.Size, Digest: f.Digest, Link: f.Link}
		if err := to.Encode(&e); err != nil {
			return err
		}
		buf.Truncate(buf.Len() - 1) // removes the line feed
		if _, err := buf.WriteTo(w); err != nil {
			return err
		}
	}
	return nil
}

// withoutFiles returns a copy of a step in which each source has one zero File instead of its
// files. It also returns the sources that have files, in order.
func (s *Step) withoutFiles() (*Step, []*Source) {
	var lists []*Source
	mark := func(src *Source) Source {
		m := *src
		if len(src.Files) > 0 {
			lists = append(lists, src)
			m.Files = make([]File, 1)
		}
		return m
	}
	c := *s
	if s.Copy != nil {
		cp := *s.Copy
		cp.Sources = make([]Source, len(s.Copy.Sources))
		for i := range cp.Sources {
			cp.Sources[i] = mark(&s.Copy.Sources[i])
		}
		c.Copy = &cp
	}
	if s.Run != nil {
		r := *s.Run
		r.Mounts = slices.Clone(s.Run.Mounts)
		for i := range r.Mounts {
			if src := r.Mounts[i].Source; src != nil {
				m := mark(src)
				r.Mounts[i].Source = &m
			}
		}
		c.Run = &r
	}
	return &c, lists
}

// canonical returns a copy of a step without the fields that do not change its effect: its name and
// its line. The copy also lacks the indexes of other steps, because the keys of these steps are
// hashed instead.
func (s *Step) canonical() *Step {
	c := *s
	c.Name, c.Line, c.From = "", 0, 0
	if s.Base != nil { // the digest identifies the image or snapshot, so its name does not matter
		b := *s.Base
		switch {
		case b.Snapshot != "":
			b.Snapshot = "snapshot"
		case b.Boot != nil:
			b.Boot = &Boot{Env: b.Boot.Env}
		default:
			b.Image = "image"
		}
		c.Base = &b
	}
	if s.Warm != nil {
		w := *s.Warm
		w.TimeoutSecs = 0
		c.Warm = &w
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

// canonical returns a copy of a source without the index of a step.
func (s Source) canonical() Source {
	if s.Step != nil {
		zero := 0
		s.Step = &zero
	}
	return s
}
