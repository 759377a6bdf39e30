package cli

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
)

// writeFiles creates files with contents in a new directory. The content "link:TARGET" makes a
// symbolic link.
func writeFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if to, ok := strings.CutPrefix(content, "link:"); ok {
			err = errors.Join(err, os.Symlink(to, path))
		} else {
			err = errors.Join(err, os.WriteFile(path, []byte(content), 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A relative path of a Dockerfile is relative to the working directory. Errors name the file as the
// user typed it. A link in the context that leads out of the context is not read.
func TestOpenDockerfile(t *testing.T) {
	dir := writeFiles(t, map[string]string{"Dockerfile": strings.Repeat("#", 1<<20+1), "secret": "no Dockerfile",
		"ctx/Dockerfile": "FROM a", "dev/Dockerfile": "FROM b", "bad/Dockerfile": "link:../secret",
		"ignore/Dockerfile": "FROM c", "ignore/.dockerignore": "link:/etc/passwd"})
	t.Chdir(dir)
	for _, c := range []struct {
		file, context, name, text, want string
	}{
		{"", "ctx", "ctx/Dockerfile", "FROM a", ""},
		{"dev/Dockerfile", "ctx", "dev/Dockerfile", "FROM b", ""},
		{"-", "ctx", "Dockerfile", "FROM stdin", ""},
		{"", ".", "", "", "more than 1048576 bytes"},
		{"", "bad", "", "", "bad/Dockerfile: the link leads to no file of the build context"},
		{"secret", "bad", "secret", "no Dockerfile", ""}, // the user named this file explicitly
		{"", "ignore", "", "", "ignore/.dockerignore: the link leads to no file of the build context"},
		{"", "none", "", "", "none"},
	} {
		files, err := (&dockerfileOptions{file: c.file}).open(c.context, strings.NewReader("FROM stdin"))
		switch {
		case c.want != "":
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%+v: %v", c, err)
			}
		case err != nil:
			t.Errorf("%+v: %v", c, err)
		case files.Name != c.name || files.Dockerfile != c.text:
			t.Errorf("%+v: %s %q", c, files.Name, files.Dockerfile)
		}
	}
}

// events are the events of a build with a cached, a completed and a failed step.
var events = []client.BuildEvent{
	{Plan: &client.BuildPlan{Steps: []string{"[a 1/3] FROM x", "[a 2/3] RUN make", "[a 3/3] RUN \x1b[2Jfalse"},
		Notes: []client.BuildNote{{Line: 4, Text: "CMD has no effect"}}}},
	{Step: &client.BuildStep{Number: 0, State: "cached"}},
	{Step: &client.BuildStep{Number: 1, State: "started"}},
	{Output: &client.BuildOutput{Number: 1, Line: "compiling \x1b]0;title"}},
	{Step: &client.BuildStep{Number: 1, State: "done", MS: 1234}},
	{Step: &client.BuildStep{Number: 2, State: "started"}},
	{Output: &client.BuildOutput{Number: 2, Line: "oh no"}},
	{Step: &client.BuildStep{Number: 2, State: "failed", MS: 500}},
}

func TestBuildProgress(t *testing.T) {
	for _, c := range []struct {
		live bool
		want []string
	}{
		{false, []string{"note: line 4: CMD has no effect\n", "#1 [a 1/3] FROM x\n#1 CACHED\n", "#2 [a 2/3] RUN make\n#2 0.0",
			" compiling \ufffd]0;title\n", "#2 DONE 1.2s\n", "#3 [a 3/3] RUN \ufffd[2Jfalse\n", "#3 ERROR after 0.5s\n"}},
		{true, []string{"note: line 4: CMD has no effect\n", " => CACHED [a 1/3] FROM x\n", " => [a 2/3] RUN make 1.2s\n",
			" => ERROR [a 3/3] RUN \ufffd[2Jfalse 0.5s\n => => oh no\n"}},
	} {
		var out log
		p := newProgress(&out, c.live)
		for _, e := range events {
			if err := p.event(e); err != nil {
				t.Fatal(err)
			}
		}
		p.end()
		rest := out.String()
		for _, w := range c.want {
			_, after, ok := strings.Cut(rest, w)
			if !ok {
				t.Fatalf("live %v: it does not show %q after what comes before, but\n%s", c.live, w, out.String())
			}
			rest = after
		}
	}
}

// Flags for Dockerfiles are refused for recipes, and vice versa. The flag --check needs no daemon.
func TestBuildFlags(t *testing.T) {
	dir := writeFiles(t, map[string]string{"Dockerfile": "from debian:12 as A\nRUN true\n",
		"ok/Dockerfile": "FROM debian:12\n", "bad/Dockerfile": "FROM debian:12\nNOPE\n"})
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--check", dir}, "warnings: 1"},
		{[]string{"--check", dir + "/ok"}, ""},
		{[]string{"--check", dir + "/bad"}, "bad/Dockerfile:2: unknown instruction: NOPE"},
		{[]string{"--check", "-f", dir + "/ok/Dockerfile", dir}, ""},
		{[]string{"--reuse", dir}, "--reuse is for a recipe"},
		{[]string{"--no-cache", "--from", "x", "--tag", "y"}, "--no-cache is for a Dockerfile or a recipe"},
		{[]string{"-f", "x", "https://example.com/x.tar"}, "want a directory"},
		{[]string{"-f", "x", dir + "/Dockerfile"}, "not a directory"},
		{[]string{"--build-arg", "=x", dir}, "--build-arg =x"},
		{[]string{"--progress", "fancy", dir}, "--progress fancy"},
		{[]string{"--secret", "src=x", dir}, "want id=ID,src=FILE"},
		{[]string{"--secret", "id=x,src=a,env=b", dir}, "want id=ID,src=FILE"},
		{[]string{"--secret", "id=x,src=/nowhere", dir}, "--secret id=x: open /nowhere"},
		{[]string{"--secret", "id=x,env=FORKD_NO_SUCH", dir}, "variable FORKD_NO_SUCH is not set"},
		{[]string{"--secret", "id=x,mode=1", dir}, "want id=ID,src=FILE"},
		{[]string{"--secret", "id=x,type=ssh", dir}, "want file or env"},
		{[]string{"--secret", "id=x,src=y", "python-numpy"}, "--secret is for a Dockerfile"},
	} {
		var out bytes.Buffer
		code := Main(append([]string{"build"}, c.args...), Stdio{In: strings.NewReader(""), Out: &out, Err: &out})
		if (code == 0) != (c.want == "") || !strings.Contains(out.String(), c.want) {
			t.Errorf("%v: exit code %d, %s; want %q", c.args, code, out.String(), c.want)
		}
	}
}

// A secret comes from a file or a variable. If the flag has neither src nor env, the variable takes
// precedence over the file.
func TestReadSecrets(t *testing.T) {
	dir := writeFiles(t, map[string]string{"file": "from a file\n", "BOTH": "from a file"})
	t.Chdir(dir)
	t.Setenv("BOTH", "from the environment")
	t.Setenv("ONE", "one")
	got, err := readSecrets([]string{"id=a,src=file", "id=b,env=ONE", "id=BOTH", "id=file", "type=file,id=d,source=BOTH"})
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{"a": "from a file\n", "b": "one", "BOTH": "from the environment",
		"file": "from a file\n", "d": "from a file"} {
		if string(got[id]) != want {
			t.Errorf("%s is %q, want %q", id, got[id], want)
		}
	}
}

// The flag --registry-auth reads Docker's configuration. If this configuration lacks a registry,
// the error says how to add the registry.
func TestRegistryAuth(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	t.Setenv("HOME", t.TempDir())
	config := `{"auths": {"ghcr.io": {"auth": "bWU6c2VjcmV0"}}}` // me:secret
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := registryAuth(t.Context(), []string{"ghcr.io"})
	if err != nil || len(got) != 1 || got["ghcr.io"].Username != "me" || got["ghcr.io"].Password != "secret" {
		t.Errorf("%d credentials, %v", len(got), err)
	}
	for host, want := range map[string]string{"docker.io": "docker login docker.io", "https://x": "name of a registry"} {
		if _, err := registryAuth(t.Context(), []string{host}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", host, err, want)
		}
	}
}
