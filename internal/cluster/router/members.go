package router

import (
	"bytes"
	"encoding/json"
	"fmt"

	apiv1 "github.com/forkd/forkd/api/v1"
)

// maxMembers bounds the lists in answers of nodes. Without it, a hostile node could send millions of empty
// members, which take a hundred times as much memory as their text.
const maxMembers = 100_000

// members is a list in an answer of a node. Members beyond maxMembers are ignored.
type members[T any] []T

// UnmarshalJSON implements json.Unmarshaler.
func (m *members[T]) UnmarshalJSON(text []byte) error {
	*m = nil
	dec := json.NewDecoder(bytes.NewReader(text))
	begin, err := dec.Token()
	if err != nil || begin == nil { // null
		return err
	}
	if begin != json.Delim('[') {
		return fmt.Errorf("%v: want a list", begin)
	}
	for dec.More() && len(*m) < maxMembers {
		var one T
		if err := dec.Decode(&one); err != nil {
			return err
		}
		*m = append(*m, one)
	}
	return nil
}

// movesAnswer is a daemon's apiv1.Moves. The daemon answers for itself only.
type movesAnswer struct {
	Nodes [1]*struct {
		Moves   members[apiv1.Move] `json:"moves"`
		Foreign members[string]     `json:"foreign"`
	} `json:"nodes"`
}
