package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// jsonNode is a value of a JSON text with its position. Settings are edited as text, so that the
// order of members, the form of numbers, and white space do not change.
type jsonNode struct {
	start, end int
	kind       json.Delim // '{' or '['; 0: neither an object nor an array
	text       string     // value of a string
	members    []jsonMember
}

// jsonMember is a member of an object, or an item of an array. An item has no key.
type jsonMember struct {
	key   string
	start int // position of the key, or of the value if there is no key
	value *jsonNode
}

// parseJSON reads one JSON text.
func parseJSON(text []byte) (*jsonNode, error) {
	p := &jsonParser{text: text, dec: json.NewDecoder(bytes.NewReader(text))}
	p.dec.UseNumber()
	n, err := p.value(0)
	if err != nil {
		return nil, fmt.Errorf("it is not valid JSON: %w", err)
	}
	if _, err := p.dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("it is not valid JSON: something follows the first value")
	}
	return n, nil
}

type jsonParser struct {
	text []byte
	dec  *json.Decoder
}

// maxJSONDepth bounds the nesting of settings.
const maxJSONDepth = 100

// begin returns the position of the next token.
func (p *jsonParser) begin() int {
	at := int(p.dec.InputOffset())
	for at < len(p.text) && bytes.IndexByte([]byte(" \t\r\n,:"), p.text[at]) >= 0 {
		at++
	}
	return at
}

func (p *jsonParser) value(depth int) (*jsonNode, error) {
	if depth > maxJSONDepth {
		return nil, fmt.Errorf("nested more than %d deep", maxJSONDepth)
	}
	n := &jsonNode{start: p.begin()}
	token, err := p.dec.Token()
	if err != nil {
		return nil, err
	}
	switch token := token.(type) {
	case json.Delim:
		n.kind = token
		for p.dec.More() {
			m := jsonMember{start: p.begin()}
			if token == '{' {
				key, err := p.dec.Token()
				if err != nil {
					return nil, err
				}
				m.key, _ = key.(string) // the decoder ensures that it is a string
			}
			if m.value, err = p.value(depth + 1); err != nil {
				return nil, err
			}
			n.members = append(n.members, m)
		}
		if _, err := p.dec.Token(); err != nil {
			return nil, err
		}
	case string:
		n.text = token
	}
	n.end = int(p.dec.InputOffset())
	return n, nil
}

// member returns the value of a key, or nil if there is none. A duplicate key is an error, because
// programs disagree about which of the values is used.
func (n *jsonNode) member(key string) (found *jsonNode, err error) {
	for _, m := range n.members {
		if m.key == key {
			if found != nil {
				return nil, fmt.Errorf("it has the key %q twice", key)
			}
			found = m.value
		}
	}
	return found, nil
}

// insertJSON adds a member or an item at the end of n. The given member or item is JSON without
// indentation.
func insertJSON(text []byte, n *jsonNode, member string) []byte {
	outer := indentAt(text, n.start)
	var out []byte
	if len(n.members) == 0 {
		inner := "\n" + outer + jsonIndent(text)
		out = append(out, text[:n.start+1]...)
		out = append(out, inner+strings.ReplaceAll(member, "\n", inner)+"\n"+outer...)
		return append(out, text[n.end-1:]...)
	}
	last := n.members[len(n.members)-1]
	out = append(out, text[:last.value.end]...)
	if before := text[n.start:last.start]; bytes.IndexByte(before, '\n') < 0 { // n is on one line
		out = append(out, ", "+oneLineJSON(member)...)
	} else {
		inner := "\n" + indentAt(text, last.start)
		out = append(out, ","+inner+strings.ReplaceAll(member, "\n", inner)...)
	}
	return append(out, text[last.value.end:]...)
}

// removeJSON removes member i of n, with the comma and the white space that insertJSON added.
func removeJSON(text []byte, n *jsonNode, i int) []byte {
	from, to := n.members[i].start, n.members[i].value.end
	switch {
	case i > 0:
		from = n.members[i-1].value.end
	case len(n.members) > 1:
		to = n.members[1].start
	default:
		from, to = n.start+1, n.end-1
	}
	return append(append([]byte(nil), text[:from]...), text[to:]...)
}

// indentAt returns the indentation of the line that contains an offset.
func indentAt(text []byte, at int) string {
	line := text[bytes.LastIndexByte(text[:at], '\n')+1 : at]
	return string(line[:len(line)-len(bytes.TrimLeft(line, " \t"))])
}

// jsonIndent returns the indentation of the first indented line, which is used for each level.
func jsonIndent(text []byte) string {
	for line := range bytes.Lines(text) {
		if body := bytes.TrimLeft(line, " \t"); len(body) < len(line) && len(bytes.TrimSpace(body)) > 0 {
			return string(line[:len(line)-len(body)])
		}
	}
	return "  "
}

// oneLineJSON converts indented JSON to one line.
func oneLineJSON(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimLeft(lines[i], " \t")
	}
	return strings.Join(lines, "")
}
