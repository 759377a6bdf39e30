package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

// uniqueFlag registers --unique.
func uniqueFlag(cmd *cobra.Command, unique *string) {
	cmd.Flags().StringVar(unique, "unique", "",
		"strict: fail if programs repeat random numbers of other copies; report: list them")
	completeWords(cmd, "unique", "report", "strict")
}

// maxRepeats bounds the number of programs that printRepeats names.
const maxRepeats = 5

// printRepeats prints a line with the programs that repeat random numbers in the sandboxes of one
// fork. The line has the programs of the first sandbox, because all sandboxes have the same
// programs.
func printRepeats(cmd *cobra.Command, siblings ...client.Sandbox) {
	if len(siblings) == 0 {
		return
	}
	s := siblings[0]
	if s.Unique == nil || len(s.Unique.Repeats) == 0 && s.Unique.More == 0 {
		return
	}
	var names []string
	for _, g := range s.Unique.Repeats {
		if name := fmt.Sprintf("%s (%s)", g.Program, g.Library); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if more := len(names) - maxRepeats; more > 0 {
		names = append(names[:maxRepeats], fmt.Sprintf("%d more", more))
	}
	printf(cmd.ErrOrStderr(),
		"forkd: these programs may repeat random numbers of other copies: %s; 'forkd inspect %s' lists them\n",
		strings.Join(names, ", "), s.ID)
}
