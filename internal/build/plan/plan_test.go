package plan

import (
	"maps"
	"strings"
	"testing"
)

func example() Plan {
	build := 1
	return Plan{Steps: []Step{
		{Name: "FROM golang:1.26", Line: 1, From: -1, Base: &Base{Image: "golang:1.26", Digest: "sha256:aa"}},
		{Name: "RUN make", Line: 2, From: 0, Run: &Run{Process: Process{Args: []string{"/bin/sh", "-c", "make"},
			Env: map[string]string{"B": "2", "A": "1"}}, Mounts: []Mount{{Kind: MountCache, Target: "/c", ID: "/c"}}}},
		{Name: "FROM base", Line: 3, From: -1, Base: &Base{Snapshot: "base", Digest: "id1"}},
		{Name: "COPY --from=build /x /x", Line: 4, From: 2, Copy: &Copy{Target: "/x",
			Sources: []Source{{Step: &build, Path: "/x"}}}},
		{Name: "COPY a /a", Line: 5, From: 3, Copy: &Copy{Target: "/a", Sources: []Source{{
			Files: []File{{Path: "a", To: "a", Kind: KindFile, Mode: 0o644, Size: 1, Digest: "00"}}}}}},
		{Name: "defaults", From: 4, Defaults: &Defaults{Dir: "/a", Env: map[string]string{"X": "y"}}},
	}, Result: 5}
}

// golden are the keys of the example. They change only together with keyVersion.
var golden = []string{
	"a8552883d769283f8e12e70c23d24f90f09edc3e5287c8fe741384df9ca6a6ba",
	"450b1adfdb3dad1e74b99470f9f19fee18a29990cc353013de730453fb6f0f9c",
	"22a6ca360290e07fcdd1838e595fc026e7fcd5b96176b707808e936c99094343",
	"2482b44fb18abccdcc4431340b9b5027d6b5b8bc104dab852e0bf7f0e3dcff1f",
	"067649619dc402bddd9f1b83a47ea580a64411e5d46ed6f6cf7de9b906437ddb",
	"6fa793e90d5fd23b407015a62335a7cbdab37702f8369e0577f813b03c9bf45e",
}

func TestKeysAreThoseOfTheirVersion(t *testing.T) {
	p := example()
	keys, err := p.Keys("agent 1", "format 1")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Join(keys, "\n") != strings.Join(golden, "\n") {
		t.Errorf(
			"keys of version %d are\n%s\nwant\n%s",
			keyVersion,
			strings.Join(keys, "\n"),
			strings.Join(golden, "\n"),
		)
	}
}

// changed returns which keys of the example a change has changed, as a text of digits.
func changed(t *testing.T, change func(*Plan)) string {
	t.Helper()
	p, q := example(), example()
	change(&q)
	a, err := p.Keys("a", "f")
	if err != nil {
		t.Fatal(err)
	}
	b, err := q.Keys("a", "f")
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for i := range a {
		if a[i] != b[i] {
			text += string(rune('0' + i))
		}
	}
	return text
}

func TestKeysChangeWithWhatStepsDo(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Plan)
		want   string
	}{
		{"nothing", func(*Plan) {}, ""},
		{"names and lines", func(p *Plan) { p.Steps[1].Name, p.Steps[1].Line = "other", 9 }, ""},
		{"name of an image of the same digest", func(p *Plan) { p.Steps[0].Base.Image = "mirror/golang" }, ""},
		{"digest of a base", func(p *Plan) { p.Steps[0].Base.Digest = "sha256:bb" }, "01345"},
		{"command", func(p *Plan) { p.Steps[1].Run.Args[2] = "make all" }, "1345"},
		{"variable", func(p *Plan) { p.Steps[1].Run.Env = map[string]string{"A": "1", "B": "3"} }, "1345"},
		{"variable for another", func(p *Plan) {
			e := maps.Clone(p.Steps[1].Run.Env)
			delete(e, "B")
			e["B2"] = ""
			p.Steps[1].Run.Env = e
		}, "1345"},
		{"mount", func(p *Plan) { p.Steps[1].Run.Mounts[0].ID = "other" }, "1345"},
		{"content of a file", func(p *Plan) { p.Steps[4].Copy.Sources[0].Files[0].Digest = "01" }, "45"},
		{"mode of a file", func(p *Plan) { p.Steps[4].Copy.Sources[0].Files[0].Mode = 0o755 }, "45"},
		{"file that was moved", func(p *Plan) { p.Steps[4].Copy.Sources[0].Files[0].Path = "b" }, ""},
		{"name of a copy", func(p *Plan) { p.Steps[4].Copy.Sources[0].Files[0].To = "b" }, "45"},
		{"stage that is copied from", func(p *Plan) { n := 0; p.Steps[3].Copy.Sources[0].Step = &n }, "345"},
		{"defaults", func(p *Plan) { p.Steps[5].Defaults.Dir = "/" }, "5"},
	} {
		if got := changed(t, c.change); got != c.want {
			t.Errorf("%s: changes the keys of steps %q, want %q", c.name, got, c.want)
		}
	}
}

func TestKeysChangeWithAgentAndFormat(t *testing.T) {
	p := example()
	seen := map[string]bool{}
	for _, v := range [][2]string{{"a", "f"}, {"b", "f"}, {"a", "g"}, {"af", ""}, {"", "af"}} {
		keys, err := p.Keys(v[0], v[1])
		if err != nil {
			t.Fatal(err)
		}
		if seen[keys[5]] {
			t.Errorf("agent %q and format %q have the keys of others", v[0], v[1])
		}
		seen[keys[5]] = true
	}
}

func TestBadPlansAreRefused(t *testing.T) {
	for _, c := range []struct {
		change func(*Plan)
		want   string
	}{
		{func(p *Plan) { p.Steps = nil }, "no steps"},
		{func(p *Plan) { p.Result = 6 }, "result 6"},
		{func(p *Plan) { p.Steps[1].Dir = &Dir{"/"} }, "2 kinds"},
		{func(p *Plan) { p.Steps[1].Run = nil }, "0 kinds"},
		{func(p *Plan) { p.Steps[0].From = 0 }, "a base continues no step"},
		{func(p *Plan) { p.Steps[1].From = 1 }, "does not stand before it"},
		{func(p *Plan) { p.Steps[1].From = -1 }, "does not stand before it"},
		{func(p *Plan) { n := 3; p.Steps[3].Copy.Sources[0].Step = &n }, "needs step 3"},
		{func(p *Plan) { p.Steps[0].Base.Snapshot = "too" }, "either an image or a snapshot"},
		{func(p *Plan) { p.Steps[0].Base.Digest = "" }, "no digest"},
		{func(p *Plan) { p.Steps[1].Run.Args = nil }, "command is empty"},
		{func(p *Plan) { p.Steps[4].Copy.Target = "a" }, "absolute"},
	} {
		p := example()
		c.change(&p)
		if _, err := p.Keys("", ""); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("want an error with %q, got %v", c.want, err)
		}
	}
}
