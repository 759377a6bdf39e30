package plan

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// every() makes a plan whose steps use all fields that are part of keys.
func every() Plan {
	zero := 0
	files := []File{
		{Path: "h/a<&>\u2028", Kind: KindFile, Mode: 0o644, Size: 3, Digest: "00"},
		{Path: "h/b\xff", Kind: KindLink, Mode: 0o777, Link: "\xfe\"\\"},
		{Path: "h/c", Kind: KindDir, Mode: 0o755},
	}
	return Plan{Steps: []Step{
		{From: -1, Base: &Base{Snapshot: "s", Digest: "d", Memory: true, VCPUs: 2, MemoryMiB: 3}},
		{From: 0, Copy: &Copy{Target: "/", Sources: []Source{}}},
		{From: 1, Copy: &Copy{Target: "/t/", Owner: "o", Mode: "755", Unpack: true, Sources: []Source{
			source(files, "h/", Source{Dir: true}), source(files[:1], "h/", Source{}),
			{Step: &zero, Path: "/p\xfd", Into: "i/", Exclude: []string{"*.x", "\xfc", `{"path":"","kind":"","mode":0}`}},
			{Inline: &Inline{Path: "", Data: "\xfb"}}, {Dir: true},
			{Remote: &Remote{URL: "u", Name: "n", Hash: "sha256", Sum: "s"}},
			{Git: &Git{URL: "u", Ref: "r", Commit: "c", Dir: "d", Keep: true}}}}},
		{From: 2, Run: &Run{Process: Process{Args: []string{"x"}, Env: map[string]string{"A": "\xfa"}, User: "u", Dir: "/"},
			Script: &Inline{Path: "/s", Data: "d"}, Network: "none", Mounts: []Mount{{Kind: MountCache, Target: "/c", ID: "c"},
				{Kind: MountBind, Target: "/b", Source: mount(source(files, "h/", Source{Dir: true}))},
				{Kind: MountBind, Target: "/f", Source: mount(source(files[1:2], "h/", Source{})), ReadOnly: true},
				{Kind: MountSecret, ID: "s", Mode: "400", UID: 1, GID: 2, Env: "E", Required: true}}}},
		{From: 3, Dir: &Dir{Path: "/d", Owner: "o"}},
		{From: 4, Warm: &Warm{Process: Process{Args: []string{"w"}}, Probe: []string{"p"}}},
		{From: 5, Defaults: &Defaults{Env: map[string]string{"B": "1"}, User: "u", Dir: "/", KeepUser: true}},
	}, Result: 6}
}

func mount(s Source) *Source { return &s }

func source(files []File, prefix string, s Source) Source {
	s.Files, s.Strip = files, len(prefix)
	return s
}

// goldenOfEvery are the keys of the plan that every() makes. They may change only together with
// keyVersion.
var goldenOfEvery = []string{
	"2efda241766ff26631250b351578ee612f0c9fa65094ebeb7515e10c4aadd57d",
	"1b6cb02adae7b4df116faf8a87c105e03e10a29882546e4a0f099767eeec1239",
	"37a4e5ca5ee85b9083ba6ffcc287778acea308a7e86dce73d0d50cc2cd68bb58",
	"3d1a92863374e641a77ffc0ef0642e3edbf1950ff3f0816c39311395494df6ba",
	"2c186a884ee35446c35968c34187f04e8e13b7328fd7ed949341bcdb152a3aa3",
	"44c8aa80c37eae281dc6307925886cd191c4809eff0564a3946f2d054a3d11d9",
	"295d636a502f9c00dae2293c1e3efa05166fc1d4016767c2c1cf8064b7c958a7",
}

func TestKeysOfEveryStepAreThoseOfTheirVersion(t *testing.T) {
	p := every()
	keys, err := p.Keys("a", "f")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(keys, "\n"), strings.Join(goldenOfEvery, "\n"); got != want {
		t.Errorf("keys of version %d are\n%s\nwant\n%s", keyVersion, got, want)
	}
}

// Computing the keys takes little memory, even if every step copies most of the build context.
func TestKeysOfManyFilesTakeLittleMemory(t *testing.T) {
	files := make([]File, 20_000)
	for i := range files {
		files[i] = File{Path: fmt.Sprintf("h/%07d\xff", i), Kind: KindLink, Link: "x"}
	}
	p := Plan{Steps: []Step{{From: -1, Base: &Base{Image: "x", Digest: "1"}}}}
	for i := range 10 {
		src := source(files, "h/", Source{Dir: true})
		p.Steps = append(p.Steps,
			Step{From: 2 * i, Copy: &Copy{Target: "/x/", Sources: []Source{src}}},
			Step{From: 2*i + 1, Run: &Run{Process: Process{Args: []string{"x"}},
				Mounts: []Mount{{Kind: MountBind, Source: &src}}}})
	}
	p.Result = len(p.Steps) - 1
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := p.Keys("a", "f"); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	// The bound is small for sources that have 400,000 files in total.
	if n := after.TotalAlloc - before.TotalAlloc; n > 40<<20 {
		t.Errorf("the keys of %d steps took %d MiB in all", len(p.Steps), n>>20)
	}
}
