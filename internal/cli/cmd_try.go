package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/client"
)

// tryFlags are the flags of forkd try.
type tryFlags struct {
	req     client.TryRequest
	each    []string // command lines
	file    string   // file with command lines
	judge   string
	labels  []string
	quiet   bool
	verbose bool
	hold    holdFlags
	run     command // holds the environment variables of the commands
}

func newTryCmd() *cobra.Command {
	var c common
	var t tryFlags
	cmd := &cobra.Command{
		Use:   "try ID -n N [--] COMMAND [ARG…]",
		Short: "Run commands in copies of a sandbox, and keep the first or the best copy",
		Long: "Branches the sandbox ID once, forks copies of it, and runs COMMAND in each, or a different command line in each\n" +
			"(--each, --file). Prints a row for every copy when its command has ended. Then it keeps copies as --keep says and\n" +
			"prints the result; --promote gives ID the state of the winner instead. Command lines, also those of --judge, are\n" +
			"run by /bin/sh, and FORKD_TRY_INDEX is the number of the copy.\n\n" +
			"  forkd try $ID -n 4 --keep first -- make test\n" +
			"  forkd try $ID --each 'patch -p1 <a' --each 'patch -p1 <b' --judge ./score --promote\n\n" +
			"Until the end the copies belong to this command: after Ctrl-C, and if this command or the daemon dies, no copy is left,\n" +
			"and ID is as it was. The exit code is 1 if --keep first or best finds no winner or, with all or none, if no command\n" +
			"has succeeded.",
		Args: usageArgs(arguments(1, anyNumber)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if done, err := t.run.parse(cmd, args[1:]); done || err != nil {
				return err
			}
			if err := t.prepare(cmd); err != nil {
				return err
			}
			return c.runOn(cmd, args[0], func(ctx context.Context, cl *client.Client, id string) error {
				return t.try(ctx, cmd, &c, cl, id)
			})
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.IntVarP(&t.req.N, "count", "n", 0, fmt.Sprintf("number of copies that run COMMAND, 1 to %d", apiv1.MaxTry))
	f.StringArrayVar(&t.each, "each", nil, "command line of one copy (repeatable), instead of COMMAND and -n")
	f.StringVarP(&t.file, "file", "f", "", "file with a command line for each copy; -: standard input")
	f.StringVar(&t.req.Keep, "keep", "", "copies that stay: all, first (the first whose command exits with 0; the others are stopped),\n"+
		"best (highest score of --judge) or none (default: best with --judge, first with --promote, otherwise none)")
	f.StringVar(&t.judge, "judge", "", "command line that runs in each copy afterwards; the last line that it prints is the score, a number")
	f.BoolVar(&t.req.Promote, "promote", false, "give ID the state of the first or best copy; no copy stays then")
	f.StringVar(&t.req.Mode, "mode", "", "mode of the branches: live (default), diff or full")
	t.req.TimeoutSecs = 600
	f.Var((*secondsValue)(&t.req.TimeoutSecs), "timeout", "kill a command after this many seconds; also a time such as 2m")
	t.run.registerEnv(f)
	t.hold.register(cmd, f)
	labelFlag(f, &t.labels)
	f.BoolVarP(&t.quiet, "quiet", "q", false, "print only the ids of the copies that stay")
	f.BoolVarP(&t.verbose, "verbose", "v", false, "print the whole output of each command below its row")
	completeWords(cmd, "keep", "all", "first", "best", "none")
	completeWords(cmd, "mode", "live", "diff", "full")
	c.completeSandboxes(cmd)
	c.register(cmd)
	return cmd
}

// prepare makes the request from the flags.
func (t *tryFlags) prepare(cmd *cobra.Command) (err error) {
	lines := t.each
	if t.file != "" {
		more, err := readCommands(cmd.InOrStdin(), t.file)
		if err != nil {
			return err
		}
		lines = append(lines, more...)
	}
	t.req.Args = t.run.req.Args
	switch {
	case len(lines) > 0 && len(t.req.Args) > 0:
		return usageError{errors.New("COMMAND goes without --each and --file: give one command for all copies, or one for each")}
	case len(lines) > 0 && t.req.N != 0:
		return usageError{errors.New("-n goes with COMMAND: --each and --file already say how many copies there are")}
	case len(lines) == 0 && len(t.req.Args) == 0:
		return usageError{errors.New("COMMAND is missing: give one for all copies, or --each 'COMMAND' for each of them")}
	case len(lines) == 0 && (t.req.N < 1 || t.req.N > apiv1.MaxTry):
		return usageError{fmt.Errorf("-n %d: want 1 to %d copies", t.req.N, apiv1.MaxTry)}
	case len(lines) > apiv1.MaxTry:
		return usageError{fmt.Errorf("%d commands: want at most %d", len(lines), apiv1.MaxTry)}
	}
	for _, line := range lines {
		t.req.Each = append(t.req.Each, client.Shell(line))
	}
	if t.judge != "" {
		t.req.Judge = client.Shell(t.judge)
	}
	if t.req.Env, err = readEnv(t.run.envFiles, t.run.env); err != nil {
		return err
	}
	if t.req.HoldEffects, err = t.hold.given(); err != nil {
		return err
	}
	t.req.Cwd, t.req.User = t.run.req.Cwd, t.run.req.User
	t.req.Labels, err = parseLabels(t.labels)
	return err
}

// readCommands returns the lines of a file that are neither empty nor comments. The file name "-"
// means stdin.
func readCommands(stdin io.Reader, name string) (lines []string, err error) {
	from := stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		from = f
	}
	scanner := bufio.NewScanner(from)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		line := strings.TrimSpace(scanner.Text())
		if line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(lines) == 0 {
		return nil, usageError{fmt.Errorf("--file %s: it has no commands: want one on each line", name)}
	}
	return lines, nil
}

// tryReport is the JSON output of the command.
type tryReport struct {
	client.TryStarted
	Results []client.TryResult `json:"results"` // in the order of the children
	client.TryEnd
}

// try sends the request, and prints the results as they arrive.
func (t *tryFlags) try(ctx context.Context, cmd *cobra.Command, c *common, cl *client.Client, id string) error {
	var report tryReport
	rows := !c.json() && !t.quiet
	end, err := cl.Try(ctx, id, t.req, func(s client.TryStarted) error {
		report.TryStarted, report.Results = s, make([]client.TryResult, len(s.Sandboxes))
		if rows {
			t.printRow(cmd, "COPY", "RESULT", "TIME", "MEMORY", "WRITTEN", "SCORE", "OUTPUT")
		}
		return nil
	}, func(r client.TryResult) error {
		if r.Index < 0 || r.Index >= len(report.Results) {
			return fmt.Errorf("the daemon sent a result of copy %d of %d", r.Index, len(report.Results))
		}
		report.Results[r.Index] = r
		if rows {
			t.printResult(cmd, r)
		}
		return nil
	})
	if err != nil {
		return err
	}
	report.TryEnd = end
	if c.json() {
		err = writeJSON(cmd.OutOrStdout(), report)
	} else {
		t.printEnd(cmd, id, end)
	}
	return exitWith(btoi(!report.good()), err)
}

// good reports whether the try has a winner. If no winner was requested, good reports whether a command
// has succeeded.
func (r *tryReport) good() bool {
	if r.Keep == "first" || r.Keep == "best" {
		return r.Winner != nil
	}
	for _, one := range r.Results {
		if one.Exec != nil && one.Exec.Outcome == "exited" && one.Exec.ExitCode == 0 {
			return true
		}
	}
	return false
}

// printRow prints a row of the table. The columns have a fixed width, because the content of later
// rows is not known yet.
func (t *tryFlags) printRow(cmd *cobra.Command, copy, result, took, memory, written, score, output string) {
	if len(t.req.Judge) == 0 {
		score = ""
	} else {
		score = fmt.Sprintf("%8s  ", score)
	}
	row := fmt.Sprintf("%-4s  %-10s  %8s  %10s  %10s  %s", copy, result, took, memory, written, score)
	if width := tableWidth(cmd); width > 0 {
		output = cut(output, max(leastWidth, width-len(row)))
	}
	printLine(cmd.OutOrStdout(), strings.TrimRight(row+output, " "))
}

func (t *tryFlags) printResult(cmd *cobra.Command, r client.TryResult) {
	result, output := "unknown", r.Error
	if r.Stopped {
		result, output = "stopped", ""
	}
	if x := r.Exec; x != nil {
		result, output = x.Outcome, lastLine(x.Stdout)
		switch {
		case x.Outcome == "exited":
			result = fmt.Sprintf("exit %d", x.ExitCode)
		case x.Signal != "":
			result = x.Signal
		}
		if output == "" {
			output = lastLine(x.Stderr)
		}
	}
	score := "-"
	if r.Score != nil {
		score = fmt.Sprintf("%.6g", *r.Score)
	}
	memory, written := "-", "-"
	if r.PrivateKiB != nil {
		memory = mib(*r.PrivateKiB << 10)
	}
	if r.MemoryKiB != nil && r.DiskKiB != nil {
		written = mib((*r.MemoryKiB + *r.DiskKiB) << 10)
	}
	took := time.Duration(r.MS * float64(time.Millisecond))
	t.printRow(cmd, fmt.Sprint(r.Index), result, fmt.Sprintf("%.2fs", took.Seconds()), memory, written, score,
		oneLine(output))
	if r.JudgeError != "" {
		printf(cmd.ErrOrStderr(), "forkd: copy %d has no score: %s\n", r.Index, r.JudgeError)
	}
	if n := len(r.Effects) + int(r.EffectsMissed); n > 0 {
		printf(cmd.ErrOrStderr(), "forkd: copy %d: %s held ('-o json' lists them)\n", r.Index,
			count(n, "request was", "requests were"))
	}
	if t.verbose && r.Exec != nil {
		printOutput(cmd.OutOrStdout(), r.Exec.Stdout, r.Exec.StdoutTruncated)
		printOutput(cmd.OutOrStdout(), r.Exec.Stderr, r.Exec.StderrTruncated)
	}
}

// printOutput prints an output of a command, indented.
func printOutput(w io.Writer, text string, truncated bool) {
	for line := range strings.Lines(text) {
		printLine(w, "    "+strings.TrimRight(line, "\r\n"))
	}
	if truncated {
		printf(w, "    … (only the first %d KiB are kept)\n", apiv1.MaxTryOutput>>10)
	}
}

// lastLine returns the last non-empty line of text.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
}

// printEnd prints the outcome: on stdout the ids of the copies that stay, and on stderr a message.
func (t *tryFlags) printEnd(cmd *cobra.Command, id string, end client.TryEnd) {
	w := cmd.ErrOrStderr()
	for _, s := range end.Kept {
		printLine(cmd.OutOrStdout(), s.ID)
	}
	switch {
	case end.Promoted != nil:
		printf(w, "forkd: %s now has the state of copy %d, confirmed after %.1f ms\n", id, value(end.Winner),
			end.Promoted.RollbackReadyMS)
		printRepeats(cmd, end.Promoted.Sandbox)
	case end.Winner != nil:
		printf(w, "forkd: copy %d stays\n", *end.Winner)
	case end.Keep == "first":
		printf(w, "forkd: no command has succeeded: no copy stays\n")
	case end.Keep == "best":
		printf(w, "forkd: no copy has a score: none stays\n")
	case end.Keep == "all":
		printf(w, "forkd: %s\n", count(len(end.Kept), "copy stays", "copies stay"))
	}
}
