package dockerfile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/build/plan"
)

// readHostile reads a Dockerfile and returns how many bytes of memory the reading allocated.
func readHostile(t *testing.T, text string, files []plan.File) (allocated uint64, err error) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = readOf(t, text, files)
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc, err
}

func readOf(t *testing.T, text string, files []plan.File) (*plan.Plan, error) {
	t.Helper()
	return Read(t.Context(), Request{Name: "Dockerfile", Text: []byte(text), Files: files, Base: anyBase})
}

func anyBase(_ context.Context, name string) (plan.Base, Config, error) {
	return plan.Base{Image: name, Digest: "1"}, Config{}, nil
}

// doubling returns a Dockerfile whose variable A has 2^n bytes before the first FROM.
func doubling(n int) string { return "ARG A=x\n" + strings.Repeat("ARG A=$A$A\n", n) }

func numbered(format string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// The memory that a Dockerfile's instructions need is checked against the bounds before it is
// allocated.
func TestSmallDockerfilesTakeLittleMemory(t *testing.T) {
	files := make([]plan.File, 2000)
	for i := range files {
		files[i] = plan.File{Path: fmt.Sprintf("f%06d", i), Kind: plan.KindFile}
	}
	long := strings.Repeat("x", 5000)
	triggers := "FROM x AS a\n" + strings.Repeat("ONBUILD LABEL a="+strings.Repeat("x", 9000)+"\n", 100)
	for name, c := range map[string]struct{ text, want string }{
		"one value": {doubling(20) + "FROM x\n", "A: the value has 65536 bytes: want at most 32768"},
		"one word": {
			doubling(15) + "ARG B=" + strings.Repeat("$A", 5000) + "\nFROM x\n",
			"more than 8 MiB in all",
		},
		"many words": {
			doubling(12) + numbered("ARG B%d=$A\n", 512) + "FROM x\n",
			"the variables take",
		},
		"many labels": {
			doubling(15) + "FROM x\nARG A\n" + strings.Repeat("LABEL a=$A\n", 20000),
			"more than 8 MiB in all",
		},
		"a replacement that multiplies": {
			doubling(14) + "ARG B=${A//x/$A}\nFROM x\n", "want at most 1014 here",
		},
		"a long replacement": {
			doubling(14) + "ARG B=${A//x/" + strings.Repeat("y", 3000) + "}\nFROM x\n",
			"too many bytes for a pattern",
		},
		"a longer replacement": {"ARG B=${A//x/" + long + "}\nFROM x\n", "its patterns have 5005 bytes"},
		"replacements within each other": {
			"ARG A=xxxxxxxx\nARG B=${A//x/${A//x/${A//x/$A}}}\nFROM x\n", "several substitutions with a pattern",
		},
		"an unclosed replacement": {
			"ARG A=x\nARG B=${A//x}z/${A//x/y}}\nFROM x\n",
			"several substitutions with a pattern",
		},
		"a long pattern": {"ARG B=${A//'" + long + "'/y}\nFROM x\n", "want at most 1024"},
		"depth": {
			"ARG B=" + strings.Repeat("${A:-", 10000) + "\nFROM x\n",
			"want at most 64",
		},
		"variables of stages": {
			"FROM x\n" + numbered("ENV B%d=1\n", 20000),
			"the variables take",
		},
		"stages": {
			strings.Repeat("FROM x\n", 100000),
			"Dockerfile:501: 100000 stages: want at most 500",
		},
		"steps": {
			"FROM x\n" + strings.Repeat("RUN x\n", 100000),
			"Dockerfile:501: there are more than 500 steps",
		},
		"warm steps": {
			"FROM x\n" + strings.Repeat("# forkd: warm x\n", 50000),
			"there are more than 500 steps",
		},
		"images": {
			"FROM x\n" + "RUN " + numbered("--mount=from=i%d,target=/x ", 1000) + "x\n",
			"want at most 100",
		},
		"sources": {
			"FROM x\nCOPY" + strings.Repeat(" .", 2000) + " /d/\n",
			"it names 2000 sources",
		},
		"sources of a stage": {
			"FROM x AS a\nFROM x\nCOPY --from=a" + strings.Repeat(" .", 2000) + " /d/\n",
			"it names 2000 sources",
		},
		"files of sources": {
			"FROM x\nCOPY" + strings.Repeat(" .", 900) + " /d/\n",
			"want at most 137072 files in all",
		},
		"patterns": {
			"FROM x\n" + strings.Repeat("COPY"+strings.Repeat(" f00000[0]", 900)+" /d/\n", 20), "too many patterns",
		},
		"a directory": {
			"FROM x\n" + strings.Repeat("WORKDIR xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n", 200),
			"want at most 4096",
		},
		"a shell": {
			"FROM x\nSHELL [\"a\"" + strings.Repeat(",\"a\"", 10000) + "]\n",
			"the shell has 10001 words",
		},
		"patterns of a stage's sources": {
			"FROM x AS a\nFROM x\nCOPY --from=a" + numbered(" --exclude=%d", 101) + " a /d/\n",
			"--exclude is there 101 times: want at most 100",
		},
		"long patterns": {
			"FROM x AS a\nFROM x\nCOPY --from=a --exclude=" + strings.Repeat("x", maxExclude+1) + " a /d/\n",
			"--exclude: the patterns have 4097 bytes",
		},
		"patterns times sources of stages": {
			"FROM x AS a\nFROM x\n" + strings.Repeat("COPY --from=a --exclude="+strings.Repeat("x", maxExclude)+
				strings.Repeat(" a", 900)+" /d/\n", 50),
			"with the patterns of --exclude for each, have more than 16 MiB",
		},
		"a long name": {
			"FROM x\nCOPY --parents **" + strings.Repeat("x", 60000) + " /d/\n",
			"the source has 60002 bytes: want at most 4096",
		},
		"sources of all instructions": {
			"FROM x AS a\nFROM x\n" + strings.Repeat("COPY --from=a"+strings.Repeat(" a", 999)+" /d/\n", 110),
			"name more than 100000 sources",
		},
		"mounts of all commands": {
			"FROM x AS a\nFROM x\nWORKDIR /" + strings.Repeat("x", 4000) + "\n" +
				strings.Repeat("RUN"+strings.Repeat(" --mount=from=a,target=t", 100)+" x\n", 300),
			"more than 5000 mounts",
		},
		"triggers times stages": {
			triggers + numbered("FROM a AS s%d\n", 100) + "FROM x\n" + numbered("COPY --from=s%d /a /a\n", 100),
			"read more than 8 MiB",
		},
		"short triggers times stages": {
			"FROM x AS a\n" + strings.Repeat("ONBUILD LABEL a=b\n", 100) + numbered("FROM a AS s%d\n", 400) + "FROM x\n" +
				numbered("COPY --from=s%d /a /a\n", 400),
			"read more than 8 MiB",
		},
	} {
		n, err := readHostile(t, c.text, files)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %.300v, want %q", name, err, c.want)
		} else if len(err.Error()) > 4000 {
			t.Errorf("%s: the error has %d bytes", name, len(err.Error()))
		}
		if n > 256<<20 { // most of it is allocated by BuildKit's parser
			t.Errorf("%s: %d bytes of Dockerfile took %d MiB", name, len(c.text), n>>20)
		}
	}
}

// Substitutions as people write them do not exceed the bounds.
func TestOrdinarySubstitutions(t *testing.T) {
	p, err := Read(t.Context(), Request{Name: "Dockerfile", Base: anyBase, Text: []byte(`ARG V=1.2.3
ARG A=${V//./_}-${V%.*}-${V##*.}-${V/./-}
ARG B=${V//"."/_}
ARG C=${A:+${B:-none}}
FROM x
ARG A B C V
ENV OUT="$A $B $C ${V%.*}"
`)})
	if err != nil {
		t.Fatal(err)
	}
	const want = "1_2_3-1.2-3-1-2.3 1_2_3 1_2_3 1.2"
	if got := p.Steps[p.Result].Defaults.Env["OUT"]; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// The settings of a base image are bounded, because the author of the image may be hostile.
func TestBasesThatSayTooMuch(t *testing.T) {
	env := make(map[string]string)
	for i := range 5000 {
		env[fmt.Sprint("E", i)] = ""
	}
	for name, config := range map[string]Config{
		"environment": {Env: env}, "value": {Env: map[string]string{"A": strings.Repeat("x", maxValue+1)}},
		"directory": {Dir: strings.Repeat("/x", MaxPath)}, "user": {User: strings.Repeat("x", MaxPath+1)},
		"shell": {Shell: make([]string, maxShellWords+1)},
	} {
		_, err := Read(t.Context(), Request{Name: "Dockerfile", Text: []byte("FROM x\n"),
			Base: func(context.Context, string) (plan.Base, Config, error) {
				return plan.Base{Image: "x", Digest: "1"}, config, nil
			}})
		if err == nil || !strings.Contains(err.Error(), "Dockerfile:1: x: the ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The settings of all base images together are bounded.
func TestBasesThatSayTooMuchTogether(t *testing.T) {
	long := strings.Repeat("x", 60<<10)
	copies := func(from string, n int) string { return numbered("COPY --from="+from+"%d /a /a\n", n) }
	for name, c := range map[string]struct {
		text   string
		config Config
		want   string
	}{
		"triggers of an image, times stages": {
			numbered("FROM img AS s%d\n", 12) + "FROM x\n" + copies("s", 12),
			Config{OnBuild: slices.Repeat([]string{"LABEL a=" + long}, 30)}, "read more than 8 MiB",
		},
		"triggers of an image": {
			"FROM img\n", Config{OnBuild: slices.Repeat([]string{"LABEL a=b"}, 1000)}, "has 1000 ONBUILD triggers",
		},
		"triggers of many images": {
			"FROM x\n" + copies("img", 100), Config{OnBuild: slices.Repeat([]string{long}, 10)}, "settings of more than 16 MiB",
		},
		"variables of many images": {
			"FROM x\n" + copies("img", 100), Config{Env: map[string]string{"A": long + long + long + long}},
			"settings of more than 16 MiB",
		},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Read(t.Context(), Request{Name: "Dockerfile", Text: []byte(c.text),
			Base: func(ctx context.Context, name string) (plan.Base, Config, error) {
				b, config, err := anyBase(ctx, name)
				if strings.HasPrefix(name, "img") {
					config = c.config
				}
				return b, config, err
			}})
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %.300v, want %q", name, err, c.want)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 256<<20 {
			t.Errorf("%s: it took %d MiB", name, n>>20)
		}
	}
}

// After a stage has been read, the reader no longer keeps the ONBUILD triggers of its base.
func TestTriggersAreNotKept(t *testing.T) {
	const text = "FROM x AS a\nONBUILD RUN x\nFROM a\n"
	src, err := parse("Dockerfile", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	r := newReader(t.Context(), Request{Name: "Dockerfile", Text: []byte(text), Base: anyBase}, src)
	st, err := r.stage(t.Context(), 1)
	if err != nil || st.onbuild != nil || len(r.plan.Steps) != 2 {
		t.Errorf("%d steps, and the stage keeps %v, %v", len(r.plan.Steps), st.onbuild, err)
	}
}

// Empty directories also count towards the limit on entries.
func TestEmptyDirectoriesAreCounted(t *testing.T) {
	var files []plan.File
	for i := range 2000 {
		files = append(files, plan.File{Path: fmt.Sprintf("d%06d", i), Kind: plan.KindDir})
	}
	_, err := readOf(t, "FROM x\nCOPY"+strings.Repeat(" d*", 900)+" /d/\n", files)
	if err == nil || !strings.Contains(err.Error(), "files in all") {
		t.Errorf("900 times 2000 directories: %v", err)
	}
}

// A source refers to a part of the context's list of files instead of copying it.
func TestSourcesShareTheListOfFiles(t *testing.T) {
	files := make([]plan.File, 50_000)
	for i := range files {
		files[i] = plan.File{Path: fmt.Sprintf("d/f%06d", i), Kind: plan.KindFile}
	}
	files[0] = plan.File{Path: "d", Kind: plan.KindDir}
	for _, text := range []string{"COPY . /d/", "COPY d /d/", "COPY --parents d /d/"} {
		n, err := readHostile(t, "FROM x\n"+strings.Repeat(text+"\n", 4), files)
		if err != nil || n > 4<<20 {
			t.Errorf("%s: it took %d MiB, %v", text, n>>20, err)
		}
	}
}

// The total size of the proxy variables in a request is bounded, because every command gets a copy.
func TestManyProxies(t *testing.T) {
	args := map[string]string{"HTTP_PROXY": "p", "X": "y"}
	read := func() (*plan.Plan, error) {
		return Read(t.Context(), Request{Name: "Dockerfile", Text: []byte("FROM x\nRUN x\n"), Args: args, Base: anyBase})
	}
	if p, err := read(); err != nil || len(p.Steps[1].Run.Env) != 1 || p.Steps[1].Run.Env["HTTP_PROXY"] != "p" {
		t.Errorf("the command's variables are %v, %v", p.Steps[1].Run.Env, err)
	}
	for i := range 8 { // the name of a proxy variable may be in upper and lower case
		name := []byte("all_proxy")
		for bit := range 3 {
			if i>>bit&1 == 1 {
				name[bit] -= 'a' - 'A'
			}
		}
		args[string(name)] = strings.Repeat("x", 30<<10)
	}
	if _, err := read(); err == nil || !strings.Contains(err.Error(), "--build-arg") {
		t.Errorf("proxies of 240 KiB: %v", err)
	}
}

// The name of a base is resolved only once, so that a Dockerfile cannot make forkd send many
// requests to a registry.
func TestBasesAreResolvedOnce(t *testing.T) {
	asked := 0
	_, err := Read(t.Context(), Request{Name: "Dockerfile",
		Text: []byte("FROM x\nRUN " + strings.Repeat("--mount=from=y,target=/x ", 50) + "x\nCOPY --from=y /a /b\n"),
		Base: func(_ context.Context, name string) (plan.Base, Config, error) {
			asked++
			return anyBase(t.Context(), name)
		}})
	if err != nil || asked != 2 {
		t.Errorf("two names are resolved %d times: %v", asked, err)
	}
}

// The number of arguments is bounded, because every command reads all of them.
func TestManyArguments(t *testing.T) {
	args := make(map[string]string)
	for i := range maxArgs + 1 {
		args[fmt.Sprint("A", i)] = ""
	}
	_, err := Read(t.Context(), Request{Name: "Dockerfile", Text: []byte("FROM x\n"), Args: args, Base: anyBase})
	if err == nil || !strings.Contains(err.Error(), "1001 --build-arg: want at most 1000") {
		t.Errorf("%d arguments: %v", len(args), err)
	}
}

// If the plan has no room for the step of a base, reading fails, and no stage begins with the step
// of another base.
func TestBaseWithoutRoom(t *testing.T) {
	for _, last := range []string{"COPY --from=a /b /c\n", "COPY --from=z /b /c\n", "RUN --mount=from=z,target=/z x\n"} {
		text := "FROM y AS a\nFROM x\n" + strings.Repeat("RUN x\n", plan.MaxSteps-1) + last
		src, err := parse("Dockerfile", []byte(text), nil)
		if err != nil {
			t.Fatal(err)
		}
		r := newReader(t.Context(), Request{Name: "Dockerfile", Text: []byte(text), Base: anyBase}, src)
		_, err = r.stage(t.Context(), 1)
		if err == nil || !strings.Contains(err.Error(), "there are more than 500 steps") {
			t.Errorf("%s: %v", last, err)
		}
		if st := r.made[0]; st != nil {
			t.Errorf("%s: stage a begins with step %d, which is %+v", last, st.step, r.plan.Steps[st.step])
		}
	}
}

// The number of notes is bounded because they are sent to the client and shown.
func TestManyNotes(t *testing.T) {
	p, err := readOf(t, "FROM x\n"+strings.Repeat("CMD x\n", 5000), nil)
	if err != nil || len(p.Notes) != maxNotes+1 || !strings.Contains(p.Notes[maxNotes].Text, "not shown") {
		t.Errorf("%d notes, %v", len(p.Notes), err)
	}
}

// Reading stops at any point once the context is cancelled, for example because the client has
// left.
func TestReadEndsWithItsContext(t *testing.T) {
	for _, text := range []string{"ARG A=1\nFROM x\n", "FROM x\nLABEL a=b\n", "FROM x\nRUN x\n", "FROM x\nCOPY . /\n"} {
		ctx, cancel := context.WithCancel(t.Context())
		base := func(_ context.Context, name string) (plan.Base, Config, error) {
			cancel()
			return anyBase(ctx, name)
		}
		if strings.HasPrefix(text, "ARG") {
			cancel()
		}
		_, err := Read(ctx, Request{Name: "Dockerfile", Text: []byte(text), Base: base})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%q: %v", text, err)
		}
		cancel()
	}
}

// Names without a pattern, and the contents of directories, are found by a binary search in the
// sorted list of files. They are not compared with every file.
func TestSourcesAreLookedUp(t *testing.T) {
	var files []plan.File
	for _, name := range []string{"a", "a-b", "a/b", "a/b/c", "a/d", "a0", "b"} {
		kind := plan.KindFile
		if name == "a" || name == "a/b" {
			kind = plan.KindDir
		}
		files = append(files, plan.File{Path: name, Kind: kind})
	}
	p, err := readOf(t, "FROM x\nCOPY a /d/\n", files)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	src := &p.Steps[1].Copy.Sources[0]
	for i := range src.Files {
		names = append(names, src.Name(&src.Files[i]))
	}
	if got := strings.Join(names, " "); got != "b b/c d" {
		t.Errorf("directory a has %s", got)
	}
	for i := range 2000 {
		files = append(files, plan.File{Path: fmt.Sprintf("f%06d", i), Kind: plan.KindFile})
	}
	text := "FROM x\n" + strings.Repeat("COPY"+strings.Repeat(" f000001", 900)+" /d/\n", 100)
	if _, err := readOf(t, text, files); err != nil {
		t.Errorf("90,000 names: %v", err)
	}
}

// A comment requests a warm step only if it stands between two instructions.
func TestPlacesOfWarmSteps(t *testing.T) {
	text := "FROM x\n" + strings.Repeat("# forkd: warm w\nRUN <<E\n# forkd: warm no\nE\nRUN a\\\n b\n", 100)
	p, err := readOf(t, text, nil)
	if err != nil || len(p.Steps) != 302 {
		t.Fatalf("%d steps, %v", len(p.Steps), err)
	}
	for i := range 100 {
		if w := p.Steps[1+3*i]; w.Warm == nil || w.Line != 2+6*i {
			t.Errorf("step %d is %+v", 1+3*i, w)
		}
	}
	_, err = readOf(t, text+"RUN a\\\n# forkd: warm w\n b\n", nil)
	if err == nil || !strings.Contains(err.Error(), "stands within an instruction") {
		t.Errorf("within an instruction: %v", err)
	}
}

// Values and words that are not text are errors, and nothing is written to stderr. The library
// would write a line for each byte that is not text, and the author of a base image chooses the
// values of the image's environment.
func TestExpandingWritesNothing(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	stderr := os.Stderr
	os.Stderr = f
	e := NewExpander(t.Context())
	for _, bad := range []string{"\xff\xff", "a\x00"} {
		if _, err := e.Expand("${PWD#${BAD}}", map[string]string{"BAD": bad}, map[string]string{"PWD": "/"}); err == nil ||
			!strings.Contains(err.Error(), "BAD") {
			t.Errorf("value %q: %v", bad, err)
		}
		if _, err := e.Expand("$PWD"+bad, nil, map[string]string{"PWD": "/"}); err == nil {
			t.Errorf("word %q: accepted", bad)
		}
	}
	os.Stderr = stderr
	if p, err := os.ReadFile(f.Name()); err != nil || len(p) > 0 {
		t.Errorf("written: %q, %v", p, err)
	}
}
