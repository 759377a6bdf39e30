package face

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/forkd/forkd/internal/host/invalid"
)

// namesThings are the fields whose value names a snapshot, sandbox or workspace. An empty value
// usually comes from an unset variable of the client, so it is an error and does not mean the
// default.
var namesThings = map[string]bool{"tag": true, "to": true, "parent_tag": true, "snapshot_tag": true, "source_id": true,
	"name": true}

// textCheck finds errors that encoding/json accepts silently: null, duplicate fields, and empty
// names.
//
// It reads only text that json.Decoder.Decode has accepted. So the text is valid, and not nested
// too deeply for recursion.
type textCheck struct {
	dec   *json.Decoder
	what  string // name of the whole text in errors
	nulls bool   // null is accepted as the value of an entry to remove
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
		if namesThings[strings.ToLower(field)] { // encoding/json ignores the case of field names
			return invalid.Errorf(field, "it is empty: give a name, or omit the field")
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

// null returns an error for null. Decode leaves the field unchanged for null, which a client that
// sends null does not expect.
func (c *textCheck) null(field string) error {
	switch {
	case field == "":
		return BadRequest("%s: null, want an object", c.what)
	case c.nulls:
		return nil
	case field == "tap", field == "memory_limit_mib": // clients of forkd 0.5 send null for unset values
		return nil
	}
	return invalid.Errorf(field, "null: give a value, or omit the field if it is optional")
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
			return invalid.Errorf(path, "the field is there twice: remove one")
		}
		seen[name] = true
		if err := c.value(path); err != nil {
			return err
		}
	}
	_, err := c.dec.Token()
	return err
}
