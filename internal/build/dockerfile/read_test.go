package dockerfile

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/build/plan"
)

// digits are the digits of a SHA-256.
var digits = strings.Repeat("a", 64)

var update = flag.Bool("update", false, "write the golden plans")

// files returns the build context for the Dockerfiles of the corpus.
func files() []plan.File {
	var list []plan.File
	for _, f := range []struct{ path, kind, link string }{
		{"archive.tar.gz", plan.KindFile, ""}, {"go.mod", plan.KindFile, ""}, {"link", plan.KindLink, "go.mod"},
		{"main.go", plan.KindFile, ""}, {"src", plan.KindDir, ""}, {"src/a.py", plan.KindFile, ""},
		{"src/notes.md", plan.KindFile, ""}, {"src/sub", plan.KindDir, ""}, {"src/sub/b.py", plan.KindFile, ""},
		{"with space.txt", plan.KindFile, ""},
	} {
		e := plan.File{Path: f.path, Kind: f.kind, Link: f.link, Mode: 0o644}
		switch f.kind {
		case plan.KindFile:
			e.Size, e.Digest = int64(len(f.path)), "digest of "+f.path
		case plan.KindDir:
			e.Mode = 0o755
		}
		list = append(list, e)
	}
	return list
}

// bases resolves the names of base images in the corpus.
func bases(_ context.Context, name string) (plan.Base, Config, error) {
	path := map[string]string{"PATH": "/usr/bin:/bin"}
	switch name {
	case "debian:12", "debian:13", "golang:1.26":
		return plan.Base{Image: name, Digest: "sha256:" + name}, Config{Env: path}, nil
	case "python:3.12":
		return plan.Base{Image: name, Digest: "sha256:" + name}, Config{Env: map[string]string{"PATH": "/usr/bin:/bin",
			"PYTHON_VERSION": "3.12"}, User: "py:py", Dir: "/home/py"}, nil
	case "base-snapshot":
		return plan.Base{Snapshot: name, Digest: "id"}, Config{Env: path, User: "user", Dir: "/home/user"}, nil
	case "base-memory":
		return plan.Base{Snapshot: name, Digest: "id", Memory: true}, Config{Env: path}, nil
	case "bad-triggers:1":
		return plan.Base{Image: name, Digest: "sha256:b"}, Config{OnBuild: []string{"ONBUILD RUN x"}}, nil
	case "binary-triggers:1":
		return plan.Base{Image: name, Digest: "sha256:n"}, Config{OnBuild: []string{"WORKDIR /\x00"}}, nil
	case "secret-triggers:1":
		return plan.Base{Image: name, Digest: "sha256:s"}, Config{OnBuild: []string{"RUN make", "ARG T=secret",
			"RUN --mount=type=$T,id=a x"}}, nil
	case "triggers:1":
		return plan.Base{Image: name, Digest: "sha256:t"}, Config{OnBuild: []string{"RUN make"}}, nil
	}
	return plan.Base{}, Config{}, errors.New("no such image")
}

// read reads a Dockerfile. Its lines that begin with "# test:" set arguments and the target.
func read(text string) (*plan.Plan, error) {
	req := Request{Name: "Dockerfile", Text: []byte(text), Files: files(), Base: bases, Args: map[string]string{}}
	for line := range strings.SplitSeq(text, "\n") {
		words := strings.Fields(line)
		if len(words) < 2 || words[1] != "test:" {
			continue
		}
		for i := 2; i+1 < len(words); i += 2 {
			name, value, _ := strings.Cut(words[i+1], "=")
			if words[i] == "target" {
				req.Target = name
			} else {
				req.Args[name] = value
			}
		}
	}
	return Read(context.Background(), req)
}

// named inserts names into the JSON of a step: for each file, the file's name below the target.
func named(line string, s *plan.Step) string {
	var sources []*plan.Source
	if s.Copy != nil {
		for i := range s.Copy.Sources {
			sources = append(sources, &s.Copy.Sources[i])
		}
	}
	if s.Run != nil {
		for _, m := range s.Run.Mounts {
			if m.Source != nil {
				sources = append(sources, m.Source)
			}
		}
	}
	done := ""
	for _, src := range sources {
		for i := range src.Files {
			before, after, _ := strings.Cut(line, `","kind":`)
			done += fmt.Sprintf(`%s","to":%q,"kind":`, before, src.Name(&src.Files[i]))
			line = after
		}
	}
	return done + line
}

// text returns a plan as text, with a line for each step and note.
func text(t *testing.T, p *plan.Plan) string {
	t.Helper()
	var b strings.Builder
	for i := range p.Steps {
		line, err := json.Marshal(&p.Steps[i])
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(
			&b,
			"%d %s\n",
			i,
			strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(named(string(line), &p.Steps[i])),
		)
	}
	fmt.Fprintf(&b, "result %d\n", p.Result)
	for _, n := range p.Notes {
		fmt.Fprintf(&b, "note %d: %s\n", n.Line, n.Text)
	}
	return b.String()
}

func TestCorpus(t *testing.T) {
	names, err := filepath.Glob("testdata/*.Dockerfile")
	if err != nil || len(names) < 25 {
		t.Fatalf("the corpus has %d Dockerfiles: %v", len(names), err)
	}
	for _, name := range names {
		golden := strings.TrimSuffix(name, ".Dockerfile") + ".golden"
		t.Run(filepath.Base(name), func(t *testing.T) {
			src, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			p, err := read(string(src))
			if err != nil {
				t.Fatal(err)
			}
			got := text(t, p)
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("the plan is\n%s\nwant\n%s", got, want)
			}
			if _, err := p.Keys("a", "f"); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "file with no instructions"},
		{"RUN true", "no build stage"},
		{"ARG A=1", "no FROM instruction"},
		{"FROM debian:12\nFRUN x", "Dockerfile:2: unknown instruction: FRUN"},
		{"FROM scratch\nRUN x", "Dockerfile:1: FROM scratch"},
		{"FROM $NOPE", "Dockerfile:1: "},
		{"FROM other:1", "Dockerfile:1: other:1: no such image"},
		{"FROM --platform=linux/arm64 debian:12", "Dockerfile:1: FROM --platform=linux/arm64"},
		{"FROM debian:12\nRUN echo \xe9", "Dockerfile:2: a byte is not text in UTF-8"},
		{"FROM debian:12\n\nRUN echo \x00", "Dockerfile:3: a byte is not text in UTF-8"},
		{"# syntax=example.com/own:1\nFROM debian:12", "Dockerfile:1: syntax=example.com/own:1"},
		{"FROM debian:12\n# forkd: warm a\nRUN --mount=type=secret,id=a x", "Dockerfile:3: RUN: --mount=type=secret: it stands"},
		{"FROM debian:12 AS a\n# forkd: warm a\nFROM a\nRUN --mount=type=secret,id=a x", "Dockerfile:4: RUN: --mount"},
		{"FROM debian:12\nRUN --mount=type=secret x", "one of source, target required"},
		{"FROM debian:12\nRUN --mount=type=secret,id=a,target=/ x", "want a file"},
		{"FROM debian:12\nRUN --mount=type=ssh x", "Dockerfile:2: RUN: --mount=type=ssh"},
		{"FROM debian:12\nRUN --mount=type=cache,target=/ x", "the root directory"},
		{"FROM debian:12\nRUN --mount=type=bind,target=/x,source=no x", "no: the build context has no such file"},
		{"FROM debian:12\nRUN --network=host x", "--network=host"},
		{"FROM debian:12\nRUN --security=insecure x", "--security=insecure"},
		{"FROM debian:12\nRUN --device=a.com/b x", "--device"},
		{"FROM debian:12\nADD --checksum=sha256:" + strings.Repeat("0", 64) + " go.mod /x", "--checksum"},
		{"FROM debian:12\nCOPY missing /x", "Dockerfile:2: COPY: missing: the build context has no such file"},
		{"FROM debian:12\nCOPY ../../etc/passwd /x", "no such file"},
		{"FROM debian:12\nCOPY --chown=a;b go.mod /x", "--chown=a;b"},
		{"FROM debian:12\nCOPY --chmod=;x go.mod /x", "--chmod=;x"},
		{"# test: target 0\nFROM debian:12\nCOPY --from=later /x /x\nFROM debian:12 AS later", "does not stand before"},
		{"FROM debian:12 AS a\nCOPY --from=a /x /x", "does not stand before"},
		{"FROM debian:12\nCOPY --from=nope:1 /x /x", "nope:1: no such image"},
		{"# test: target nope\nFROM debian:12 AS a", `target "nope": no such stage: there are a`},
		{"FROM debian:12\n# forkd: cool x", "there are only warm and probe"},
		{"FROM bad-triggers:1", "Dockerfile:1: ONBUILD ONBUILD RUN x: a trigger of a trigger"},
		{"FROM binary-triggers:1", "want at most 65536 bytes of UTF-8, without NUL bytes"},
		{"FROM secret-triggers:1", "Dockerfile:1: RUN: --mount=type=secret: an ONBUILD trigger of an image gets no secret"},
		{"FROM debian:12\nADD https://example.com/x /x", "Dockerfile:2: ADD: https://example.com/x: without --checksum"},
		{"FROM debian:12\nADD --checksum=sha256:aa https://example.com/x /x", "want sha256:"},
		{"FROM debian:12\nADD --checksum=md5:aa https://example.com/x /x", "want sha256:"},
		{"FROM debian:12\nADD https://example.com/x.git /x", "without a commit"},
		{"FROM debian:12\nADD https://example.com/x.git#main /x", "without a commit"},
		{"FROM debian:12\nADD git@example.com:x /x", "no key for ssh"},
		{"FROM debian:12\nADD ssh://git@example.com/x /x", "no key for ssh"},
		{"FROM debian:12\nADD https://me:pw@example.com/x.git /x", "password in it"},
		{"FROM debian:12\nADD ftp://example.com/x /x", "want a URL of http"},
		{"FROM debian:12\nADD file:///etc/passwd /x", "it is no URL"},
		{"FROM debian:12\nADD --checksum=sha256:" + digits + " go.mod /x", "--checksum and --keep-git-dir are for"},
		{"FROM debian:12\nADD --checksum=sha256:" + digits + " https://a/b go.mod /x/", "--checksum is for one source"},
		{"FROM debian:12\nADD --checksum=sha256:" + digits + " https://a/ /x/", "no name for the file"},
		{"FROM debian:12\nADD --unpack --checksum=sha256:" + digits + " https://a/b /x/", "--unpack is for files"},
		{"FROM debian:12\nCOPY --from=golang:1.26 --exclude=[ /x /x", "--exclude"},
		{"FROM debian:12\n# forkd: warm", "want a command"},
		{"FROM debian:12\n# forkd: probe x", "directly below"},
		{"FROM debian:12\nRUN a \\\n# forkd: warm x\n b", "Dockerfile:3: # forkd: stands within an instruction"},
		{"FROM debian:12\nUSER $NOPE", "Dockerfile:2: USER"},
		{"FROM debian:12\nARG A=" + strings.Repeat("x", 60_000) + "\nENV B=" + strings.Repeat("$A", 20), "want at most"},
	} {
		_, err := read(c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.80q: got %v, want an error with %q", c.text, err, c.want)
		}
		var e *Error
		if err != nil && !errors.As(err, &e) {
			t.Errorf("%.80q: %v is no *Error", c.text, err)
		}
	}
}

func TestIgnore(t *testing.T) {
	i, err := NewIgnore([]string{"*.log", "!keep.log", "build", "**/node_modules"})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"a.log": true, "keep.log": false, "x/a.log": false, "build/x": true,
		"a/node_modules/b": true, "main.go": false} {
		if out := i.Out(name); out != want {
			t.Errorf("%s: out is %v, want %v", name, out, want)
		}
	}
	if (Ignore{}).Out("x") {
		t.Error("the zero Ignore leaves something out")
	}
	if _, err := NewIgnore([]string{"[a"}); err == nil {
		t.Error("a bad pattern is taken")
	}
}

func TestCheck(t *testing.T) {
	list, err := Check("Dockerfile", []byte("from debian:12 as A\nMAINTAINER x\nRUN true\n"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, w := range list {
		found[w.Rule] = w.Line
	}
	for rule, line := range map[string]int{"StageNameCasing": 1, "MaintainerDeprecated": 2} {
		if found[rule] != line {
			t.Errorf("rule %s is broken at line %d, want %d; all: %v", rule, found[rule], line, list)
		}
	}
	if list, err := Check("Dockerfile", []byte("# check=skip=all\nfrom debian:12 as A\n")); err != nil ||
		len(list) > 0 {
		t.Errorf("skipped rules: %v, %v", list, err)
	}
	if _, err := Check("Dockerfile", []byte("FROM a\nNOPE\n")); err == nil {
		t.Error("a Dockerfile that cannot be read is checked")
	}
}

func FuzzRead(f *testing.F) {
	names, _ := filepath.Glob("testdata/*.Dockerfile")
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := read(text)
		if err != nil {
			return
		}
		if _, err := p.Keys("a", "f"); err != nil {
			t.Errorf("a plan that was read has no keys: %v", err)
		}
	})
}
