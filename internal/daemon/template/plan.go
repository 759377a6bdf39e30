package template

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/forkd/forkd/internal/build/plan"
	"github.com/forkd/forkd/internal/daemon/build"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/invalid"
)

// Plan is the description of a template's build, as the SDKs send it.
type Plan struct {
	FromImage    string       // image from a registry; empty: FromTemplate is used
	Login        *build.Login // credentials for the registry of FromImage
	FromTemplate string       // tag of a snapshot
	Steps        []Step
	Force        bool   // whether all steps are run, even if their snapshots exist
	MayReplace   bool   // whether the build may replace a template that another client made
	StartCmd     string // command that keeps running in the template; empty: none
	// Command that succeeds when the template is ready. If it is empty, the template is ready
	// immediately or, if there is a StartCmd, some time after the start of this command.
	ReadyCmd string
}

// Step is one instruction.
type Step struct {
	Type      string   `json:"type"`
	Args      []string `json:"args"`
	FilesHash string   `json:"filesHash"` // name of the archive; COPY only
	Force     bool     `json:"force"`     // whether this step and all later steps are run even if their snapshots exist
}

// maxSteps is the maximum number of steps of a template. A reader adds a few steps of its own to
// the plan.
const maxSteps = plan.MaxSteps - 10

func (p *Plan) check(template string) error {
	switch {
	case (p.FromImage == "") == (p.FromTemplate == ""):
		return invalid.Errorf("fromTemplate", "want either that or fromImage")
	case p.FromTemplate == template:
		return invalid.Errorf("fromTemplate", "%q: it cannot take its own place: build it under another name", template)
	case len(p.Steps) > maxSteps:
		return invalid.Errorf("steps", "%d: want at most %d", len(p.Steps), maxSteps)
	}
	if p.FromTemplate != "" {
		if err := snapshot.CheckTag(p.FromTemplate); err != nil {
			return invalid.Errorf("fromTemplate", "%v", err)
		}
	}
	for n := range p.Steps {
		if reason := p.Steps[n].check(); reason != "" {
			return invalid.Errorf(fmt.Sprintf("steps[%d]", n), "%.40s: %s", p.Steps[n].Type, reason)
		}
	}
	return nil
}

// Types of steps. In E2B, ADD is another name for COPY, and ARG is another name for ENV.
const (
	typeCopy    = "COPY"
	typeAdd     = "ADD"
	typeRun     = "RUN"
	typeEnv     = "ENV"
	typeArg     = "ARG"
	typeWorkdir = "WORKDIR"
	typeUser    = "USER"
)

func (s *Step) isCopy() bool { return s.Type == typeCopy || s.Type == typeAdd }

// Valid arguments of steps. A user's name may contain variables, which are expanded later.
var (
	modeForm  = regexp.MustCompile(`^[0-7]{3,4}$`)
	ownerForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$`)
	envForm   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// check returns a description of the error in a step, or "".
func (s *Step) check() string {
	s.Type = strings.ToUpper(s.Type)
	for _, arg := range s.Args {
		if strings.ContainsRune(arg, 0) {
			return "an argument has a NUL byte in it"
		}
	}
	switch s.Type {
	case typeCopy, typeAdd:
		return s.checkCopy()
	case typeRun:
		if len(s.Args) < 1 || len(s.Args) > 2 {
			return "want a command, and perhaps a user"
		}
	case typeEnv, typeArg:
		if len(s.Args) == 0 || len(s.Args)%2 != 0 {
			return "want names and values"
		}
		for n := 0; n < len(s.Args); n += 2 {
			if !envForm.MatchString(s.Args[n]) {
				return fmt.Sprintf("%.40q: want a name of letters, digits and '_'", s.Args[n])
			}
		}
	case typeWorkdir, typeUser:
		if len(s.Args) < 1 || s.Args[0] == "" {
			return "want an argument"
		}
	default:
		return "forkd has no such step: want COPY, RUN, ENV, WORKDIR or USER"
	}
	return ""
}

func (s *Step) checkCopy() string {
	switch {
	case len(s.Args) < 2 || s.Args[1] == "":
		return "want a source and a target"
	case len(s.Args) > 2 && s.Args[2] != "" && !ownerForm.MatchString(s.Args[2]):
		return fmt.Sprintf("%.40q: want USER or USER:GROUP", s.Args[2])
	case len(s.Args) > 3 && s.Args[3] != "" && !modeForm.MatchString(s.Args[3]):
		return fmt.Sprintf("%.40q: want a mode such as 0755", s.Args[3])
	case s.FilesHash == "":
		return "filesHash is missing"
	}
	return ""
}

// arg returns an optional argument, or "".
func (s *Step) arg(n int) string {
	if n < len(s.Args) {
		return s.Args[n]
	}
	return ""
}

// text returns the text of a step for the log, without the values of variables, which may be
// secrets.
func (s *Step) text() string {
	args := s.Args
	switch s.Type {
	case typeEnv, typeArg:
		args = nil
		for n := 0; n < len(s.Args); n += 2 {
			args = append(args, s.Args[n])
		}
	case typeCopy, typeAdd:
		args = s.Args[:2]
	case typeRun:
		args = s.Args[:1]
	}
	return s.Type + " " + strings.Join(args, " ")
}

// sourceOf returns the path, in the step's archive, of the files that a COPY step copies. This path
// is the part of the pattern before its first wildcard. The SDKs archive the files that match the
// pattern, with paths relative to the client's directory.
func sourceOf(pattern string) string {
	var fixed []string
	for part := range strings.SplitSeq(pattern, "/") {
		if strings.ContainsAny(part, `*?[{\`) {
			break
		}
		if part != "" && part != "." && part != ".." {
			fixed = append(fixed, part)
		}
	}
	return strings.Join(fixed, "/")
}
