package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// anyNumber means any number of arguments.
const anyNumber = -1

// arguments returns a check of the number of arguments. Its error shows the command's usage.
func arguments(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		few := len(args) < least
		if !few && (most == anyNumber || len(args) <= most) {
			return nil
		}
		what := "too many arguments"
		if few {
			what = "too few arguments"
		}
		want := cmd.CommandPath() + strings.TrimPrefix(cmd.Use, cmd.Name())
		return fmt.Errorf("%s: the command is '%s'", what, want)
	}
}

// usageArgs converts an error about arguments to a usage error.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		if err == nil {
			err = cmd.ValidateRequiredFlags() // cobra would check later, and return an error that is not a usageError
		}
		if err != nil {
			return usageError{err}
		}
		return nil
	}
}
