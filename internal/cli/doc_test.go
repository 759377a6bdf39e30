package cli

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestEveryCommandIsOnTheMap: docs/cli.md names every command that users can see.
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
