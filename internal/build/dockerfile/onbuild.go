package dockerfile

import (
	"errors"
	"fmt"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

// trigger is an ONBUILD instruction of a stage or an image. Every stage that is built on that stage
// or image executes the trigger first.
type trigger struct {
	line int // line of the ONBUILD instruction; 0: it comes from an image
	text string
}

// Bounds on triggers. Each stage reads all triggers of its base again.
const (
	maxTriggers  = 100      // triggers of one base
	maxTrigger   = 64 << 10 // bytes of one trigger
	maxTriggered = 8 << 20  // bytes of the triggers that all stages read, plus triggerSize for each trigger
	triggerSize  = 512      // bytes that a trigger takes in addition to its text
)

// trigger makes a stage begin with the triggers of its base. Errors name the given line, which is
// the line of the stage's FROM instruction.
func (r *reader) trigger(st *stage, list []trigger, line int) error {
	if len(list) > maxTriggers {
		return r.fail(line, "the base has %d ONBUILD triggers: want at most %d", len(list), maxTriggers)
	}
	for _, t := range list {
		if err := r.ctx.Err(); err != nil {
			return err
		}
		if r.triggered += len(t.text) + triggerSize; r.triggered > maxTriggered {
			return r.fail(line, "the stages that continue bases with ONBUILD triggers read more than %d MiB of these: want fewer "+
				"such stages", maxTriggered>>20)
		}
		cmd, err := t.parse(line)
		if err != nil {
			return r.fail(line, "ONBUILD %s: %w", oneLine(t.text), err)
		}
		st.onbuild = append(st.onbuild, cmd)
	}
	st.total += countSteps(st.onbuild)
	return nil
}

func (t trigger) parse(line int) (instructions.Command, error) {
	if len(t.text) > maxTrigger || !isText([]byte(t.text)) {
		return nil, fmt.Errorf("want at most %d bytes of UTF-8, without NUL bytes", maxTrigger)
	}
	ast, err := parser.Parse(strings.NewReader(t.text))
	if err != nil {
		return nil, err
	}
	if len(ast.AST.Children) != 1 {
		return nil, errors.New("want one instruction")
	}
	node := ast.AST.Children[0]
	node.StartLine, node.EndLine = line, line
	cmd, err := instructions.ParseCommand(node)
	if err != nil {
		return nil, err
	}
	if _, ok := cmd.(*instructions.OnbuildCommand); ok {
		return nil, errors.New("a trigger of a trigger is not allowed")
	}
	return cmd, nil
}
