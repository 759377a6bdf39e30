package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/forkd/forkd/internal/cli"
)

// Every command that users can see has a page that describes its options, and the shells accept
// their completions.
func TestPagesAndCompletions(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	dir := t.TempDir()
	if err := write(dir); err != nil {
		t.Fatal(err)
	}
	pages := 0
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		name := strings.ReplaceAll(c.CommandPath(), " ", "-")
		page, err := os.ReadFile(filepath.Join(dir, "man", name+".1"))
		if err != nil {
			t.Error(err)
		}
		text := strings.ReplaceAll(string(page), `\-`, "-")
		for _, want := range []string{c.Short, "Nov 2023", "forkd " + c.Root().Version} {
			if !strings.Contains(text, want) {
				t.Errorf("%s.1 does not have %q", name, want)
			}
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && !strings.Contains(text, "--"+f.Name) {
				t.Errorf("%s.1 does not have --%s", name, f.Name)
			}
		})
		pages++
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				visit(sub)
			}
		}
	}
	visit(cli.Command(cli.Stdio{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard}))
	if files, _ := filepath.Glob(filepath.Join(dir, "man", "*.1")); pages < 40 || len(files) < pages {
		t.Errorf("%d pages of %d commands", len(files), pages)
	}
	for shell, file := range map[string]string{"bash": "bash/forkd", "zsh": "zsh/_forkd", "fish": "fish/forkd.fish"} {
		file = filepath.Join(dir, file)
		if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), "__complete") {
			t.Errorf("%s asks forkd nothing: %v", file, err)
		}
		program, err := exec.LookPath(shell)
		if err != nil {
			t.Logf("%s is not installed", shell)
			continue
		}
		if out, err := exec.Command(program, "-n", file).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", shell, err, out)
		}
	}
}

// The Debian package has the version of the CLI. It packs only files that exist. scripts/package
// makes all of these files in out/package.
func TestDebianPackageIsOfThisVersion(t *testing.T) {
	text, err := os.ReadFile("../debian/changelog")
	if err != nil {
		t.Fatal(err)
	}
	want := "forkd (" + cli.Command(cli.Stdio{}).Version + "-1) "
	if !strings.HasPrefix(string(text), want) {
		t.Errorf("the newest entry of packaging/debian/changelog is not for %q", want)
	}
	if text, err = os.ReadFile("../debian/nfpm.yaml"); err != nil {
		t.Fatal(err)
	}
	source := regexp.MustCompile(`src: ([^,]+),|(?:postinstall|preremove|postremove): (\S+)`)
	sources := source.FindAllStringSubmatch(string(text), -1)
	if len(sources) < 15 {
		t.Fatalf("found %d sources in nfpm.yaml", len(sources))
	}
	for _, m := range sources {
		path := m[1] + m[2]
		if strings.HasPrefix(path, "out/") || strings.HasPrefix(path, "bin/") {
			continue
		}
		if _, err := os.Stat(filepath.Join("../..", path)); err != nil {
			t.Error(err)
		}
	}
}
