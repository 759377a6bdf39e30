package sandbox

import (
	"context"
	"fmt"
	"strings"

	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/proto/agentproto"
)

// Strict says what becomes of a sandbox in which programs repeat the random numbers of its
// siblings.
type Strict string

// Values of Strict.
const (
	StrictAsBefore Strict = ""       // as the sandbox has it, or the snapshot that it is forked from
	StrictReport   Strict = "report" // it is handed out, and Info.Unique names them
	StrictRefuse   Strict = "strict" // its fork, rollback or resume fails with a *NotUniqueError
)

// ParseStrict returns the value of the field "unique" of a request.
func ParseStrict(text string) (Strict, error) { return Strict(text), Strict(text).check() }

func (s Strict) check() error {
	switch s {
	case StrictAsBefore, StrictReport, StrictRefuse:
		return nil
	}
	return invalid.Errorf("unique", "%.70q: want report or strict", string(s))
}

// or returns whether a sandbox is strict that was so, or was not, before.
func (s Strict) or(before bool) bool {
	if s == StrictAsBefore {
		return before
	}
	return s == StrictRefuse
}

// strictness returns the value that or makes strict of.
func strictness(strict bool) Strict {
	if strict {
		return StrictRefuse
	}
	return StrictReport
}

// SetStrict changes what becomes of a sandbox in rollbacks and resumes from now on.
func (m *Manager) SetStrict(ctx context.Context, id string, strict Strict) error {
	if err := strict.check(); err != nil || strict == StrictAsBefore {
		return err
	}
	return m.With(ctx, id, func(h *Held) error {
		return h.s.updateAll(func(r *ledger.Record) { r.Strict = strict.or(r.Strict) })
	})
}

// admitUnique takes what an agent has found into the record, and reports whether the sandbox may be
// handed out. An agent that has not looked may have missed something.
func admitUnique(r *ledger.Record, found *agentproto.Unique) error {
	r.Unique = found
	if !r.Strict || found != nil && len(found.Repeats) == 0 && found.More == 0 {
		return nil
	}
	return &NotUniqueError{ID: r.ID, Found: found}
}

// NotUniqueError reports a sandbox that is strict and in which programs repeat random numbers.
type NotUniqueError struct {
	ID    string
	Found *agentproto.Unique // nil: its agent is too old to look
}

// maxNamed is how many generators an error names.
const maxNamed = 8

func (e *NotUniqueError) Error() string {
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
