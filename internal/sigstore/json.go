package sigstore

import (
	"bytes"
	"encoding/json"
	"strings"
)

// HasKeyTwice reports whether an object in a JSON text has two keys that are equal or differ only
// in case. Programs disagree about which of the two values counts: encoding/json takes the second
// value. So a registry could assign a copied signature to a snapshot other than the snapshot that
// this daemon has checked. The text must be valid.
func HasKeyTwice(text []byte) bool {
	type level struct {
		keys map[string]bool // nil for an array
		at   bool            // whether the next token is a key or the end of the object
	}
	var open []level
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		token, err := d.Token()
		if err != nil {
			return false
		}
		var top *level
		if len(open) > 0 {
			top = &open[len(open)-1]
		}
		if token == json.Delim('}') || token == json.Delim(']') {
			open = open[:len(open)-1]
			continue
		}
		if top != nil && top.at {
			// Fold as encoding/json does, which also takes U+017F for s and U+212A for k.
			key := strings.ToLower(strings.ToUpper(token.(string)))
			if top.keys[key] {
				return true
			}
			top.keys[key], top.at = true, false
			continue
		}
		if top != nil && top.keys != nil {
			top.at = true
		}
		switch token {
		case json.Delim('{'):
			open = append(open, level{make(map[string]bool), true})
		case json.Delim('['):
			open = append(open, level{})
		}
	}
}
