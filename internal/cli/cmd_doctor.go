package cli

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/doctor"
)

func newDoctorCmd() *cobra.Command {
	var output, url string
	var tokens tokenFlags
	var fixing, yes, dry, all bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether this host can run forkd, and suggest fixes",
		Long: "Begins with the decisive checks: whether VMs can run here or in an emulated host, and the daemon, its\n" +
			"free space, limits and network. Failures follow; --all prints all checks. Exits with 1 if a check fails.\n" +
			"Warnings mean that forkd runs, but slower, with less space or less safely. Each finding shows the\n" +
			"command that fixes it. --fix runs the commands that change only files of forkd, asks before commands\n" +
			"that change this host (--yes: does not ask), leaves the others to you, and checks again.",
		Args: usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			if !fixing && (yes || dry) {
				return usageError{errors.New("--yes and --dry-run go with --fix")}
			}
			host := doctorHost(url, &tokens)
			findings := host.Diagnose(cmd.Context())
			fixer := doctor.Fixer{Yes: yes, Dry: dry, Out: cmd.ErrOrStderr()}
			if in := cmd.InOrStdin(); isTerminalInput(in) {
				fixer.In = bufio.NewReader(in)
			}
			if fixing && fixer.FixAll(cmd.Context(), findings) {
				findings = doctor.Merge(findings, host.Diagnose(cmd.Context()))
			}
			return report(cmd, findings, output == "json", all || fixing)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&all, "all", "a", false, "print all checks")
	f.BoolVarP(&all, "verbose", "v", false, "the same as --all")
	f.BoolVar(&fixing, "fix", false, "fix what this command can fix")
	f.BoolVarP(&yes, "yes", "y", false, "with --fix: do not ask before commands that change this host")
	f.BoolVar(&dry, "dry-run", false, "with --fix: only print what would be done")
	f.StringVar(&url, "daemon-url", "", "daemon to look for; default as in the other commands")
	f.StringVar(&tokens.file, "token-file", "", "token file to check (default that of 'forkd token')")
	f.StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

// doctorHost describes this host and the daemon that commands would use.
func doctorHost(address string, tokens *tokenFlags) doctor.Host {
	return doctor.Host{
		Version:   version,
		Named:     address != "" || os.Getenv(urlEnv) != "", // connect uses the same condition
		TokenFile: tokens.path,
		Machine:   runningMachine,
		Connect: func(ctx context.Context) (*client.Client, string, error) {
			return connect(ctx, address, nil)
		},
	}
}

// report prints findings. It returns an error if a check has failed.
func report(cmd *cobra.Command, findings []doctor.Finding, json, all bool) error {
	count := map[doctor.Verdict]int{}
	for _, f := range findings {
		count[f.Verdict]++
	}
	out, more := cmd.OutOrStdout(), ""
	if !all && !json {
		findings, more = doctor.Foremost(findings), "; all of them: forkd doctor --all"
	}
	var err error
	switch width := tableWidth(cmd); {
	case json:
		err = writeJSON(out, findings)
	case width > 0:
		err = printFindings(out, width, findings)
	default:
		err = table(cmd, "CHECK\tRESULT\tDETAIL\tFIX", func(row func(...any)) {
			for _, f := range findings {
				command := "-"
				if f.Fix != nil {
					command = f.Fix.String()
				}
				row(f.Check, f.Verdict, f.Detail, command)
			}
		})
	}
	if !json {
		printf(cmd.ErrOrStderr(), "forkd: %d pass, %d warn, %d fail, %d skipped%s\n", count[doctor.Pass],
			count[doctor.Warn], count[doctor.Fail], count[doctor.Skip], more)
	}
	if err == nil && count[doctor.Fail] > 0 {
		return exitCode(exitError)
	}
	return err
}

// printFindings prints findings as text. Details are wrapped to the width of the terminal. The fix
// follows the details.
func printFindings(out io.Writer, width int, findings []doctor.Finding) error {
	checks := 0
	for _, f := range findings {
		checks = max(checks, utf8.RuneCountInString(f.Check))
	}
	colours := map[doctor.Verdict]string{doctor.Pass: green, doctor.Warn: yellow, doctor.Fail: red, doctor.Skip: ""}
	var text strings.Builder
	indent := strings.Repeat(" ", len("pass")+checks+2*tableGap)
	for _, f := range findings {
		v := styled(f.Verdict)
		if c := colours[f.Verdict]; c != "" {
			v = coloured(out, c, string(f.Verdict))
		}
		printf(&text, "%s  %-*s  %s\n", v, checks, f.Check,
			multiline(strings.Join(wrapped(f.Detail, width-len(indent)), "\n"+indent)))
		if f.Fix != nil { // on one line, so that users can copy it
			printf(&text, "%s→ %s\n", indent, f.Fix)
		}
	}
	_, err := io.WriteString(out, text.String())
	return err
}

// wrapped breaks text into lines whose length is at most width. Longer words stay whole.
func wrapped(text string, width int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}
