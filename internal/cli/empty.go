package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// freeAfter maps a command to the number of arguments that are names. The arguments after these
// names are words for a program in a sandbox, and may be empty. All arguments of other commands are
// names.
var freeAfter = map[string]int{"forkd exec": 1, "forkd run": 1, "forkd eval": 1, "forkd try": 1,
	"forkd machine exec": 0}

// refuseEmpty makes an empty argument or flag a usage error, for cmd and all of its subcommands.
// Empty text usually comes from an unset variable of a script, and must not select the default.
func refuseEmpty(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		refuseEmpty(c)
	}
	check := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := checkNotEmpty(cmd, args); err != nil {
			return err
		}
		if check == nil {
			return nil
		}
		return check(cmd, args)
	}
}

func checkNotEmpty(cmd *cobra.Command, args []string) error {
	if n, ok := freeAfter[cmd.CommandPath()]; ok {
		args = args[:min(n, len(args))]
	}
	for i, arg := range args {
		if arg == "" {
			want := cmd.CommandPath() + strings.TrimPrefix(cmd.Use, cmd.Name())
			return usageError{fmt.Errorf("%s is empty: the command is '%s'", argumentName(cmd.Use, i), want)}
		}
	}
	return emptyFlag(cmd.Flags())
}

// argumentName returns the name of argument i in a usage line, such as "ID".
func argumentName(use string, i int) string {
	own, _, _ := strings.Cut(use, " | ")
	words := strings.Fields(own)[1:]
	if len(words) == 0 || strings.HasPrefix(words[0], "-") {
		return fmt.Sprintf("argument %d", i+1)
	}
	return strings.Trim(words[min(i, len(words)-1)], "[]…")
}

// emptyFlag returns an error if the value of a flag is empty.
func emptyFlag(f *pflag.FlagSet) (err error) {
	f.Visit(func(flag *pflag.Flag) {
		values := []string{flag.Value.String()}
		switch list, ok := flag.Value.(pflag.SliceValue); {
		case ok:
			values = list.GetSlice()
		case flag.Value.Type() != "string":
			return
		}
		for _, v := range values {
			if v == "" && err == nil {
				err = usageError{fmt.Errorf("--%s is empty: give a value, or omit the flag", flag.Name)}
			}
		}
	})
	return err
}
