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
			Files: []File{{Path: "a", Kind: KindFile, Mode: 0o644, Size: 1, Digest: "00"}}}}}},
		{Name: "defaults", From: 4, Defaults: &Defaults{Dir: "/a", Env: map[string]string{"X": "y"}}},
	}, Result: 5}
}

// golden are the keys of the example. They may change only together with keyVersion.
var golden = []string{
	"93cbee12a28f836d403395da0a54a62723ec4c2b7306513e8b4a2ffa7177ebff",
	"b7896b3a6c2d25c31b883d2d6c56fe2ea918efd824ad5ac0796ac5360165e0ee",
	"3ca8722576042c16a2c8326384d958a2fc0b821b08be94b0d25678a664f06df9",
	"050a42cd03ff0ed3a896a719a8c8a420b74102be46e7ef2a730fda174ad16a6d",
	"dbdda446fa8829e180a0848b9721e4cb21bbc0b70e6af0c7339969ff7ff985cf",
	"fe6811340dd59da4097e9915617a1f01669839f7bf1082eda91b8870242fcea7",
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

// changed edits a copy of the example with the callback change, and returns the numbers of the
// steps whose keys are then different. Each number is one digit of the result.
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
		{"memory of a base", func(p *Plan) { p.Steps[2].Base.Memory = true }, "2345"},
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
		{"file that was moved", func(p *Plan) {
			src := &p.Steps[4].Copy.Sources[0]
			src.Files[0].Path, src.Strip = "b/a", 2
		}, ""},
		{"time of a file", func(p *Plan) { p.Steps[4].Copy.Sources[0].Files[0].ModTime = 1 }, ""},
		{"name of a copy", func(p *Plan) { p.Steps[4].Copy.Sources[0].Files[0].Path = "b" }, "45"},
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
		{func(p *Plan) { p.Steps[1].Dir = &Dir{Path: "/"} }, "2 kinds"},
		{func(p *Plan) { p.Steps[1].Run = nil }, "0 kinds"},
		{func(p *Plan) { p.Steps[0].From = 0 }, "a base continues no step"},
		{func(p *Plan) { p.Steps[1].From = 1 }, "does not stand before it"},
		{func(p *Plan) { p.Steps[1].From = -1 }, "does not stand before it"},
		{func(p *Plan) { n := 3; p.Steps[3].Copy.Sources[0].Step = &n }, "needs step 3"},
		{func(p *Plan) { p.Steps[0].Base.Snapshot = "too" }, "an image, files to boot from, or a snapshot"},
		{func(p *Plan) { p.Steps[0].Base.Digest = "" }, "no digest"},
		{func(p *Plan) { p.Steps[0].Base.Memory = true }, "no memory to keep"},
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

// Snapshots have memory from the first warm step on, or if their base has memory. The snapshot of a
// step with a secret has no memory.
func TestWhichStepsKeepMemory(t *testing.T) {
	secret := Step{Run: &Run{Process: Process{Args: []string{"x"}}, Mounts: []Mount{{Kind: MountSecret, ID: "s"}}}}
	kinds := map[rune]Step{
		'i': {Base: &Base{Image: "i", Digest: "d"}}, 'd': {Base: &Base{Snapshot: "d", Digest: "d"}},
		'm': {Base: &Base{Snapshot: "m", Digest: "d", Memory: true}}, 'r': {Run: &Run{Process: Process{Args: []string{"x"}}}},
		'w': {Warm: &Warm{Process: Process{Args: []string{"x"}}}}, 's': secret, 'e': {Defaults: &Defaults{}},
	}
	for _, c := range [][2]string{
		{"irre", "0001"}, {"drwre", "00111"}, {"mrre", "1111"}, {"mrsre", "11001"}, {"isrwe", "00011"}, {"ie", "01"},
	} {
		var p Plan
		for i, k := range c[0] {
			s := kinds[k]
			s.From = i - 1
			p.Steps = append(p.Steps, s)
		}
		p.Result = len(p.Steps) - 1
		if err := p.Check(); err != nil {
			t.Errorf("%s: %v", c[0], err)
		}
		got := ""
		for _, m := range p.Memory() {
			if m {
				got += "1"
			} else {
				got += "0"
			}
		}
		if got != c[1] {
			t.Errorf("%s: memory %s, want %s", c[0], got, c[1])
		}
	}
}
