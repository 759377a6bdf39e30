package template

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/build/dockerfile"
	"github.com/forkd/forkd/internal/build/plan"
)

// describe renders the steps of a plan, one per line.
func describe(p *plan.Plan) (lines []string) {
	process := func(p *plan.Process) string {
		var env []string
		for _, k := range slices.Sorted(maps.Keys(p.Env)) {
			env = append(env, k+"="+p.Env[k])
		}
		return fmt.Sprintf("%s by %q in %q with %s", p.Args[len(p.Args)-1], p.User, p.Dir, strings.Join(env, " "))
	}
	for _, s := range p.Steps {
		text := fmt.Sprintf("%d ", s.Line)
		if s.Force {
			text += "force "
		}
		switch {
		case s.Base != nil:
			text += "base " + s.Base.Snapshot
		case s.Run != nil:
			text += "run " + process(&s.Run.Process)
		case s.Dir != nil:
			text += fmt.Sprintf("dir %s of %q", s.Dir.Path, s.Dir.Owner)
		case s.Copy != nil:
			c := s.Copy
			text += fmt.Sprintf("copy %s owner %q mode %q dir %v:", c.Target, c.Owner, c.Mode, c.Sources[0].Dir)
			for _, f := range c.Sources[0].Files {
				text += " " + f.Path + ">" + c.Sources[0].Name(&f)
			}
		case s.Warm != nil:
			text += "warm " + process(&s.Warm.Process) + " probe " + s.Warm.Probe[len(s.Warm.Probe)-1]
		case s.Defaults != nil:
			text += fmt.Sprintf("defaults %q %s keep %v A=%s", s.Defaults.User, s.Defaults.Dir, s.Defaults.KeepUser,
				s.Defaults.Env["A"])
		}
		lines = append(lines, text)
	}
	return lines
}

func readSteps(t *testing.T, p Plan) (*plan.Plan, error) {
	t.Helper()
	r := &reader{from: p, files: []plan.File{{Path: "a", Kind: plan.KindDir}, {Path: "a/d", Kind: plan.KindDir},
		{Path: "h", Kind: plan.KindDir}, {Path: "h-", Kind: plan.KindDir}, {Path: "h-/d", Kind: plan.KindFile},
		{Path: "h/d", Kind: plan.KindDir}, {Path: "h/d-", Kind: plan.KindFile}, {Path: "h/d/x", Kind: plan.KindFile},
		{Path: "h/d2", Kind: plan.KindFile}, {Path: "h/l", Kind: plan.KindLink}}}
	return r.read(t.Context(), "made", plan.Base{Snapshot: "base", Digest: "d"},
		dockerfile.Config{Env: map[string]string{"P": "/bin"}, User: "user", Dir: "/home/user"})
}

// A step runs with the settings of the steps before it. A forced step forces all later steps.
func TestStepsBecomeAPlan(t *testing.T) {
	p, err := readSteps(t, Plan{StartCmd: "serve", Steps: []Step{
		{Type: typeEnv, Args: []string{"A", "1", "Q", `$A "${NO:-3}" \n '$P' $(x)` + "`"}},
		{Type: typeRun, Args: []string{"one"}},
		{Type: typeWorkdir, Args: []string{"sub/../x$A"}},
		{Type: typeEnv, Args: []string{"A", "$PWD", "Q", "$HOME"}, Force: true},
		{Type: typeCopy, Args: []string{"d", "to/"}, FilesHash: "h"},
		{Type: typeCopy, Args: []string{"./l", "/l2", "", "0600"}, FilesHash: "h"},
		{Type: typeCopy, Args: []string{"d*", ".", "root"}, FilesHash: "h"},
		{Type: typeUser, Args: []string{"other:g"}},
		{Type: typeRun, Args: []string{"two", "root"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"0 base base",
		`2 run one by "user" in "/home/user" with A=1 P=/bin Q= "3" \n '/bin' $(x)` + "`",
		`3 dir /home/user/x1 of "user"`,
		`5 force copy /home/user/x1/to/ owner "user" mode "" dir true: h/d/x>x`,
		`6 force copy /l2 owner "user" mode "0600" dir false: h/l>l`,
		`7 force copy /home/user/x1/ owner "root" mode "" dir true: h/d>d h/d->d- h/d/x>d/x h/d2>d2 h/l>l`,
		`8 force run other by "" in "" with `,
		`9 force run two by "root" in "/home/user/x1" with A=/home/user/x1 P=/bin Q=/root`,
		`0 force warm serve by "other" in "/home/user/x1" with A=/home/user/x1 P=/bin Q=/root probe 20`,
		`0 force defaults "other" /home/user/x1 keep false A=/home/user/x1`,
	}
	if got := describe(p); !slices.Equal(got, want) {
		t.Errorf("the plan is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// If no step chooses a user, the template keeps the user of its base.
func TestUserIsKept(t *testing.T) {
	p, err := readSteps(t, Plan{ReadyCmd: "up"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"0 base base", `0 warm : by "user" in "/home/user" with P=/bin probe up`,
		`0 defaults "" /home/user keep true A=`}
	if got := describe(p); !slices.Equal(got, want) {
		t.Errorf("the plan is %q", got)
	}
}

func TestWrongStepsSayWhichTheyAre(t *testing.T) {
	for _, s := range []Step{
		{Type: typeCopy, Args: []string{"none", "to"}, FilesHash: "h"},
		{Type: typeCopy, Args: []string{"d", "$NO"}, FilesHash: "h"},
		{Type: typeEnv, Args: []string{"A", "${"}},
		{Type: typeUser, Args: []string{"a b"}},
	} {
		_, err := readSteps(t, Plan{Steps: []Step{{Type: typeRun, Args: []string{"x"}}, s}})
		var at *stepError
		var own *ownError
		if !errors.As(err, &at) || at.step != "2" || !errors.As(err, &own) {
			t.Errorf("%+v: %v", s, err)
		}
	}
}
