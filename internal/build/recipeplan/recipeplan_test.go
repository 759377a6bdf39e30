package recipeplan

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/build/dockerfile"
	"github.com/forkd/forkd/internal/build/plan"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/recipes"
)

var update = flag.Bool("update", false, "write the golden plans")

var boot = plan.Boot{Kernel: "/k", Rootfs: "/r", Env: map[string]string{"PATH": "/usr/bin"}}

// contextOf returns the directory of a recipe as a build context. The digest of each file is a text
// with the file's name.
func contextOf(t *testing.T, fsys fs.FS) (list []plan.File) {
	t.Helper()
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || name == ".":
			return err
		case d.IsDir():
			list = append(list, plan.File{Path: name, Kind: plan.KindDir, Mode: 0o700})
		default:
			list = append(list, plan.File{Path: name, Kind: plan.KindFile, Mode: 0o640, Size: 1, Digest: "digest of " + name})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(list, func(a, b plan.File) int { return strings.Compare(a.Path, b.Path) })
	return list
}

// text returns a plan as text, with a line for its network and a line for each step.
func text(t *testing.T, p *plan.Plan) string {
	t.Helper()
	var b strings.Builder
	add := func(what any) {
		to := json.NewEncoder(&b)
		to.SetEscapeHTML(false)
		if err := to.Encode(what); err != nil {
			t.Fatal(err)
		}
	}
	add(p.Network)
	for i := range p.Steps {
		add(p.Steps[i])
	}
	return b.String()
}

// compare compares a plan with the golden plan.
func compare(t *testing.T, name, got string) {
	t.Helper()
	golden := path.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(golden); err != nil || got != string(want) {
		t.Errorf("%s: %v; it is\n%s", golden, err, got)
	}
}

// Every recipe that comes with forkd has its golden plan.
func TestPlansOfRecipes(t *testing.T) {
	entries, err := fs.ReadDir(recipes.FS, ".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		dir, err := fs.Sub(recipes.FS, e.Name())
		if err != nil {
			t.Fatal(err)
		}
		recipe, err := fs.ReadFile(dir, "recipe.yaml")
		if err != nil {
			t.Fatal(err)
		}
		p, err := Read(t.Context(), Request{Text: recipe, Boot: boot, Digest: "d", Files: contextOf(t, dir)})
		if err != nil {
			t.Errorf("%s: %v", e.Name(), err)
			continue
		}
		compare(t, e.Name(), text(t, p))
	}
	if len(entries) < 12 {
		t.Errorf("%d recipes", len(entries))
	}
}

// whole has every field of a recipe.
const whole = `name: whole
base: docker://debian:12
files:
  - {source: app, target: /srv/app}
  - {source: tool.sh, target: /usr/local/bin/tool}
  - {source: app/a.txt, target: /etc/a.conf, mode: "0600"}
user: true
env: {A: "1", PATH: /bin}
warmup:
  start: server --port 80
  probe: curl -fs localhost
  commands:
    - |
      set -e
      echo one
    - echo two
  python: import this
  timeout_secs: 30
network: {allow: [pypi.org], deny: [10.0.0.0/8]}
limits: {memory_mib: 256, cpus: 0.5}
unique: strict
memory_mib: 768
vcpus: 2
volume_slots: 3
disk_mib: 2048
`

var wholeFiles = []plan.File{
	{Path: "app", Kind: plan.KindDir, Mode: 0o700},
	{Path: "app-other", Kind: plan.KindFile, Mode: 0o644, Digest: "x"},
	{Path: "app/a.txt", Kind: plan.KindFile, Mode: 0o640, Size: 3, Digest: "a"},
	{Path: "app/link", Kind: plan.KindLink, Mode: 0o777, Link: "a.txt"},
	{Path: "app/run", Kind: plan.KindFile, Mode: 0o750, Size: 3, Digest: "r"},
	{Path: "tool.sh", Kind: plan.KindFile, Mode: 0o700, Size: 3, Digest: "t"},
}

// Every field of a recipe has an effect on the steps or the result. A request may replace the
// network and the limits.
func TestPlanOfEveryField(t *testing.T) {
	req := Request{Text: []byte(whole), Boot: boot, Digest: "d", Files: wholeFiles}
	p, err := Read(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "every-field", text(t, p))
	req.Network, req.Limits = &snapshot.Network{Mode: "open"}, &vm.Limits{CPUs: 2}
	if p, err = Read(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	want := plan.Children{Network: req.Network, Limits: *req.Limits, Strict: true}
	if got := p.Steps[p.Result].Children; !reflect.DeepEqual(*got, want) || p.Network.Mode != "open" {
		t.Errorf("%+v, %+v", *got, p.Network)
	}
	if boot.Env["A"] != "" {
		t.Error("the environment of the base was changed")
	}
}

// A change gives new keys to the first step that it affects and to all later steps.
func TestWhatAChangeRunsAgain(t *testing.T) {
	keys := func(text string, files []plan.File, digest string) []string {
		t.Helper()
		p, err := Read(t.Context(), Request{Text: []byte(text), Boot: boot, Digest: digest, Files: files})
		if err != nil {
			t.Fatal(err)
		}
		k, err := p.Keys("agent", "format")
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	before := keys(whole, wholeFiles, "d")
	changed := slices.Clone(wholeFiles)
	changed[5].Digest = "other"
	unused := slices.Clone(wholeFiles)
	unused[1].Digest = "other"
	for what, c := range map[string]struct {
		from int // index of the first step whose key changes
		keys []string
	}{
		"nothing":       {10, keys(whole, wholeFiles, "d")},
		"base":          {0, keys(whole, wholeFiles, "e")},
		"memory":        {0, keys(strings.Replace(whole, "768", "769", 1), wholeFiles, "d")},
		"environment":   {0, keys(strings.Replace(whole, `"1"`, `"2"`, 1), wholeFiles, "d")},
		"a file":        {2, keys(whole, changed, "d")},
		"another file":  {10, keys(whole, unused, "d")},
		"the network":   {4, keys(strings.Replace(whole, "pypi", "pypy", 1), wholeFiles, "d")},
		"start":         {4, keys(strings.Replace(whole, "port 80", "port 81", 1), wholeFiles, "d")},
		"a command":     {6, keys(strings.Replace(whole, "echo two", "echo 2", 1), wholeFiles, "d")},
		"python":        {7, keys(strings.Replace(whole, "import this", "import os", 1), wholeFiles, "d")},
		"the time":      {10, keys(strings.Replace(whole, "timeout_secs: 30", "timeout_secs: 31", 1), wholeFiles, "d")},
		"limits":        {9, keys(strings.Replace(whole, "256", "257", 1), wholeFiles, "d")},
		"unique":        {9, keys(strings.Replace(whole, "strict", "report", 1), wholeFiles, "d")},
		"a description": {10, keys(whole+"description: x\n", wholeFiles, "d")},
	} {
		from := 0
		for from < len(before) && c.keys[from] == before[from] {
			from++
		}
		if from != c.from || len(before) != 10 {
			t.Errorf("%s: the first new key is that of step %d, want %d of %d", what, from, c.from, len(before))
		}
	}
}

// An error names the field and the valid values.
func TestErrorsNameTheField(t *testing.T) {
	const head = "name: x\nbase: debian:bookworm\n"
	for _, c := range [][2]string{
		{"", "the file is empty"},
		{"name: X\n", `name: "X" must be 1 to 63`},
		{head + "colour: red\n", `unknown field "colour"`},
		{
			head + "files: [{source: no, target: /a}]\n",
			`files[0]: source: "no": the build context has no such file`,
		},
		{
			head + "files: [{source: app/link, target: /a}]\n",
			`files[0]: source: "app/link": want a file or a directory`,
		},
		{head + "files: [{source: tool.sh, target: /}]\n", `files[0]: target: "/" is a directory`},
		{head + "files: [{source: app, target: /tmp/x}]\n", "is hidden by a mount"},
		{head + "warmup: {start: x}\n", "warmup: start and probe: want both or none"},
		{head + "warmup: {timeout_secs: 4000}\n", "warmup: timeout_secs: 4000 is not between 0 and 3600"},
		{head + "unique: always\n", "want report or strict"},
		{head + "network: {mode: none, allow: [a.example]}\n", "network: "},
		{head + "limits: {memory_mib: 1}\n", "limits: "},
		{head + "files:\n  - {source: deep, target: /}\n", `"/tmp/x" is hidden by a mount`},
		{
			head + "warmup:\n  commands:\n" + strings.Repeat("  - x\n", 496),
			"files and warmup.commands: 496 entries: want at most 495 in all",
		},
		{
			head + "files:\n" + entries("no", 400) + "warmup:\n  commands:\n" +
				strings.Repeat("  - x\n", 100),
			"files and warmup.commands: 500 entries: want at most 495 in all",
		},
	} {
		files := append([]plan.File{{Path: "deep/tmp/x", Kind: plan.KindFile, Digest: "x"}}, wholeFiles...)
		slices.SortFunc(files, func(a, b plan.File) int { return strings.Compare(a.Path, b.Path) })
		_, err := Read(t.Context(), Request{Text: []byte(c[0]), Boot: boot, Digest: "d", Files: files})
		if err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%.80s: %v, want %q", c[0], err, c[1])
		}
	}
}

// entries returns n entries of the field files, with the same source.
func entries(source string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "  - {source: %s, target: /a%d}\n", source, i)
	}
	return b.String()
}

// A recipe with the maximum number of entries becomes a plan.
func TestMostEntries(t *testing.T) {
	text := "name: x\nbase: debian:bookworm\nwarmup:\n  start: x\n  probe: x\n  python: x\n  commands:\n" +
		strings.Repeat("  - x\n", maxEntries)
	p, err := Read(t.Context(), Request{Text: []byte(text), Boot: boot, Digest: "d"})
	if err != nil || len(p.Steps) != plan.MaxSteps {
		t.Error(err)
	}
}

// The number of entries that a recipe copies is bounded. Reading stops when the client has left.
func TestCopiedFilesAreBounded(t *testing.T) {
	files := make([]plan.File, 20_000)
	for i := range files {
		files[i] = plan.File{Path: fmt.Sprintf("d/%05d", i), Kind: plan.KindFile, Digest: "x"}
	}
	files = append(files, plan.File{Path: "d0", Kind: plan.KindFile, Digest: "x"})
	read := func(ctx context.Context, n int) (*plan.Plan, error) {
		text := "name: x\nbase: debian:bookworm\nfiles:\n" + entries("d", n)
		return Read(ctx, Request{Text: []byte(text), Boot: boot, Digest: "d", Files: files})
	}
	most := dockerfile.MaxCopied(len(files)) / 20_000
	p, err := read(t.Context(), most)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(p.Steps[1].Copy.Sources[0].Files); n != 20_000 {
		t.Errorf("an entry copies %d files", n)
	}
	_, err = read(t.Context(), most+1)
	if want := fmt.Sprintf("files[%d]: source: the entries of the recipe copy", most); err == nil ||
		!strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := read(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("after the client has gone: %v", err)
	}
}

// The name of a step has the first line of its command, without the other lines.
func TestTitles(t *testing.T) {
	for command, want := range map[string]string{
		"echo": "echo", "  a  \n": "a", "set -e\necho": "set -e …", strings.Repeat("é", 40): strings.Repeat("é", 30) + " …",
	} {
		if got := title(command); got != want {
			t.Errorf("%q: %q, want %q", command, got, want)
		}
	}
}
