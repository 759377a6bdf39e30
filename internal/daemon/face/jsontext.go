package face

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/forkd/forkd/internal/host/invalid"
)

// namesThings are the fields whose value names a snapshot, sandbox or workspace. Empty text there
// is mostly an unset variable of the client, and must not mean the default.
var namesThings = map[string]bool{"tag": true, "to": true, "parent_tag": true, "snapshot_tag": true, "source_id": true,
	"name": true}

// textCheck finds what encoding/json takes without a word: null, a field that is there twice, and
// empty names.
//
// It reads text that json.Decoder.Decode has taken: it is sound, and not too deep for a recursion.
type textCheck struct {
	dec   *json.Decoder
	what  string // errors call the whole text this
	nulls bool   // null takes something away
}

func (c *textCheck) value(field string) error {
	token, err := c.dec.Token()
	if err != nil {
		return BadRequest("%s: %v", c.what, err)
	}
	switch token {
	case nil:
		return c.null(field)
	case "":
		if namesThings[strings.ToLower(field)] { // encoding/json takes names of fields in any case
			return invalid.Errorf(field, "it is empty: name something, or leave the field out")
		}
	case json.Delim('{'):
		return c.object(field)
	case json.Delim('['):
		for c.dec.More() {
			if err := c.value(field + "[]"); err != nil {
				return err
			}
		}
		_, err = c.dec.Token()
	}
	return err
}

// null refuses null: Decode leaves a field as it was, and a client that sends it means something
// else.
func (c *textCheck) null(field string) error {
	switch {
	case field == "":
		return BadRequest("%s: null, want an object", c.what)
	case c.nulls:
		return nil
	case field == "tap", field == "memory_limit_mib": // clients of forkd 0.5 send it for what they were not given
		return nil
	}
	return invalid.Errorf(field, "null: give a value, or leave the field out if it is optional")
}

func (c *textCheck) object(field string) error {
	seen := map[string]bool{}
	for c.dec.More() {
		token, err := c.dec.Token()
		if err != nil {
			return BadRequest("%s: %v", c.what, err)
		}
		name, _ := token.(string)
		path := strings.TrimPrefix(fmt.Sprintf("%s.%s", field, name), ".")
		if seen[name] {
			return invalid.Errorf(path, "the field is there twice: leave one out")
		}
		seen[name] = true
		if err := c.value(path); err != nil {
			return err
		}
	}
	_, err := c.dec.Token()
	return err
}
