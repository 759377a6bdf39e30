// Package unique decides what happens to a sandbox in which programs repeat the random numbers of
// the sandbox's siblings. The agent in the guest finds such programs; see docs/uniqueness.md.
package unique

import (
	"fmt"
	"strings"

	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/proto/agentproto"
)

// Strict says what happens to a sandbox in which programs repeat the random numbers of its
// siblings.
type Strict string

// Values of Strict.
const (
	AsBefore Strict = ""       // keep the setting of the sandbox; in a fork, take the setting of the snapshot
	Report   Strict = "report" // let clients use the sandbox, and list the programs in Info.Unique
	Refuse   Strict = "strict" // let the fork, rollback or resumption fail with an *Error
)

// Parse returns the value of the field "unique" of a request.
func Parse(text string) (Strict, error) { return Strict(text), Strict(text).Check() }

// Check returns an *invalid.Error if s is not a valid value.
func (s Strict) Check() error {
	switch s {
	case AsBefore, Report, Refuse:
		return nil
	}
	return invalid.Errorf("unique", "%.70q: want report or strict", string(s))
}

// Or reports whether a sandbox is strict after a request with the value s, given the sandbox's
// earlier setting.
func (s Strict) Or(before bool) bool {
	if s == AsBefore {
		return before
	}
	return s == Refuse
}

// Of returns Refuse if strict is set, and otherwise Report.
func Of(strict bool) Strict {
	if strict {
		return Refuse
	}
	return Report
}

// Admit returns an error if clients may not use a sandbox because of what its agent has found. If
// the agent did not search, a strict sandbox may not be used either.
func Admit(id string, strict bool, found *agentproto.Unique) error {
	if !strict || found != nil && len(found.Repeats) == 0 && found.More == 0 {
		return nil
	}
	return &Error{ID: id, Found: found}
}

// Error reports that programs in a strict sandbox repeat random numbers.
type Error struct {
	ID    string
	Found *agentproto.Unique // nil: the agent is too old to search
}

// maxNamed is the maximum number of generators that an error names.
const maxNamed = 8

func (e *Error) Error() string {
	msg := fmt.Sprintf("sandbox %s is not unique, and it is strict: ", e.ID)
	if e.Found == nil {
		return msg + "the agent of its snapshot does not look for generators; bake or branch the snapshot again with this version"
	}
	var names []string
	for i, g := range e.Found.Repeats {
		if i == maxNamed {
			names = append(names, fmt.Sprintf("%d more", len(e.Found.Repeats)-i))
			break
		}
		names = append(names, fmt.Sprintf("%s (process %d of program %s)", g.Library, g.PID, g.Program))
	}
	if e.Found.More > 0 {
		names = append(names, "others that the list had no room for")
	}
	return msg + "these repeat the random numbers of its siblings: " + strings.Join(names, ", ")
}
