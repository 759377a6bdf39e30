package dockerfile

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

// directive is a comment that requests a warm step. It has the form "# forkd: warm COMMAND", and
// may have a second line of the form "# forkd: probe COMMAND". Docker ignores such comments.
type directive struct {
	line    int
	command string
	probe   string // empty: the warm command itself must succeed
}

var directiveForm = regexp.MustCompile(`^\s*#\s*forkd:\s*(\S+)\s*(.*?)\s*$`)

// directives returns the comments of a Dockerfile that request warm steps, sorted by line.
func directives(name string, text []byte, ast *parser.Node) ([]directive, error) {
	var found []directive
	line, nodes := 0, ast.Children
	for raw := range bytes.SplitSeq(text, []byte("\n")) {
		line++
		m := directiveForm.FindSubmatch(bytes.TrimSuffix(raw, []byte("\r")))
		if m == nil {
			continue
		}
		for len(nodes) > 0 && nodes[0].EndLine < line { // nodes are sorted by line
			nodes = nodes[1:]
		}
		switch within(nodes, line) {
		case inHeredoc: // a line of the here-document, not a comment
			continue
		case inInstruction:
			return nil, &Error{name, line, errors.New("# forkd: stands within an instruction: put it below")}
		}
		verb, command := string(m[1]), string(m[2])
		if command == "" {
			return nil, &Error{name, line, fmt.Errorf("# forkd: %s: want a command after it", verb)}
		}
		switch verb {
		case "warm":
			found = append(found, directive{line: line, command: command})
		case "probe":
			last := len(found) - 1
			if last < 0 || found[last].line != line-1 || found[last].probe != "" {
				return nil, &Error{name, line, errors.New("# forkd: probe: want it directly below a # forkd: warm")}
			}
			found[last].probe = command
		default:
			return nil, &Error{name, line, fmt.Errorf("# forkd: %s: there are only warm and probe", verb)}
		}
	}
	return found, nil
}

type place int

const (
	outside place = iota
	inInstruction
	inHeredoc
)

// within(nodes, line) says where a line is: between instructions, in an instruction or in a
// here-document. nodes[0] must be the first instruction that ends at the line or below it.
func within(nodes []*parser.Node, line int) place {
	switch {
	case len(nodes) == 0 || line < nodes[0].StartLine:
		return outside
	case len(nodes[0].Heredocs) > 0:
		return inHeredoc
	}
	return inInstruction
}

// warmName returns the name of the warm step.
func (d *directive) warmName() string { return "WARM " + strings.Join(strings.Fields(d.command), " ") }
