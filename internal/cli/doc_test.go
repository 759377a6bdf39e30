package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestEveryCommandIsOnTheMap checks that docs/cli.md names every visible command.
func TestEveryCommandIsOnTheMap(t *testing.T) {
	text, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	root := newRoot(Stdio{})
	seen := 0
	var visit func(prefix string, c *cobra.Command)
	visit = func(prefix string, c *cobra.Command) {
		for _, sub := range c.Commands() {
			if sub.Hidden {
				continue
			}
			name := strings.TrimSpace(prefix + " " + sub.Name())
			if sub.HasSubCommands() {
				visit(name, sub)
				continue
			}
			if !strings.Contains(string(text), "`"+name+"`") {
				t.Errorf("docs/cli.md does not name %q", name)
			}
			seen++
		}
	}
	visit("", root)
	if seen < 25 {
		t.Errorf("found %d commands: there are more", seen)
	}
}

var (
	// This expression is for code in documents: code blocks, and text between backticks.
	code = regexp.MustCompile("(?s)```.*?```|`[^`]+`")

	// This expression is for a command line in code. It does not match "forkd /v1/…", a shell
	// function in docs/api.md.
	typed = regexp.MustCompile("(?m)(?:^[`$]?|[(|;&]) ?forkd ([a-z][^`#|;)\n]*)")

	comment = regexp.MustCompile(`#.*`)

	flagName = regexp.MustCompile(`^--?[a-zA-Z][a-z0-9-]*`)
)

// TestDocumentsHaveCommandsThatExist checks that the command lines in documents use existing
// commands and flags.
func TestDocumentsHaveCommandsThatExist(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	root, seen := newRoot(Stdio{}), 0
	root.InitDefaultCompletionCmd()
	for _, file := range append(files, "../../README.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range code.FindAllString(string(text), -1) {
			for _, m := range typed.FindAllStringSubmatch(comment.ReplaceAllString(block, ""), -1) {
				seen++
				if wrong := misses(root, strings.Fields(m[1])); wrong != "" {
					t.Errorf("%s: forkd %s: there is no %s", file, m[1], wrong)
				}
			}
		}
	}
	if seen < 200 {
		t.Errorf("found %d command lines: there are more", seen)
	}
}

// misses returns the first wrong word of a command line: a command that does not exist, or a flag
// that the line's command lacks. It returns "" if there is none.
func misses(root *cobra.Command, words []string) string {
	cmd, args, err := root.Find(ungrouped(words))
	if err != nil || cmd == root {
		return words[0]
	}
	if cmd.HasSubCommands() && len(args) > 0 && cmd.ValidateArgs(args[:1]) != nil {
		return args[0]
	}
	for _, arg := range args {
		if arg == "--" || strings.ContainsAny(arg, "'\"(") {
			break // the remaining words are for another program
		}
		if name := flagName.FindString(arg); name != "" && !hasFlag(cmd, name) {
			return name
		}
	}
	return ""
}

// hasFlag reports whether a command has a flag. Combined short flags such as -it must all exist.
func hasFlag(cmd *cobra.Command, name string) bool {
	cmd.InitDefaultHelpFlag()
	_ = cmd.InheritedFlags() // has the side effect of adding the flags of the root command
	if long, ok := strings.CutPrefix(name, "--"); ok {
		return cmd.Flags().Lookup(long) != nil
	}
	for _, letter := range name[1:] {
		f := cmd.Flags().ShorthandLookup(string(letter))
		if f == nil {
			return false
		}
		if f.NoOptDefVal == "" {
			break // the remaining text is the value of the flag
		}
	}
	return true
}
