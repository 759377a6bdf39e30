// Package unique decides what becomes of a sandbox whose programs repeat the random numbers of its
// siblings. What they repeat is found by the agent; see docs/uniqueness.md.
package unique

import (
	"fmt"
	"strings"

	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/proto/agentproto"
)

// Strict says what becomes of a sandbox in which programs repeat the random numbers of its
// siblings.
type Strict string

// Values of Strict.
const (
	AsBefore Strict = ""       // as the sandbox has it, or the snapshot that it is forked from
	Report   Strict = "report" // it is handed out, and Info.Unique names them
	Refuse   Strict = "strict" // its fork, rollback or resume fails with an *Error
)

// Parse returns the value of the field "unique" of a request.
func Parse(text string) (Strict, error) { return Strict(text), Strict(text).Check() }

// Check returns what is wrong with a value, as an *invalid.Error.
func (s Strict) Check() error {
	switch s {
	case AsBefore, Report, Refuse:
		return nil
	}
	return invalid.Errorf("unique", "%.70q: want report or strict", string(s))
}

// Or returns whether a sandbox is strict that was so, or was not, before.
func (s Strict) Or(before bool) bool {
	if s == AsBefore {
		return before
	}
	return s == Refuse
}

// Of returns the value that Or makes strict of.
func Of(strict bool) Strict {
	if strict {
		return Refuse
	}
	return Report
}

// Admit reports whether a sandbox may be handed out in which its agent has found this. An agent that has
// not looked may have missed something.
func Admit(id string, strict bool, found *agentproto.Unique) error {
	if !strict || found != nil && len(found.Repeats) == 0 && found.More == 0 {
		return nil
	}
	return &Error{ID: id, Found: found}
}

// Error reports a sandbox that is strict and in which programs repeat random numbers.
type Error struct {
	ID    string
	Found *agentproto.Unique // nil: its agent is too old to look
}

// maxNamed is how many generators an error names.
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
