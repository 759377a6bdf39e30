package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// verdict of one check.
type verdict string

const (
	pass verdict = "pass"
	warn verdict = "warn"
	fail verdict = "fail"
	skip verdict = "skip"
)

// finding is what one check of doctor's has found.
type finding struct {
	Check   string  `json:"check"`
	Verdict verdict `json:"verdict"`
	Detail  string  `json:"detail"`
	Fix     *fix    `json:"fix,omitempty"`
}

func found(check string, v verdict, detail string) finding {
	return finding{Check: check, Verdict: v, Detail: detail}
}

func newDoctorCmd() *cobra.Command {
	var output, url string
	var tokens tokenFlags
	var fixing, yes, dry, all bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether this host can run forkd, and say what to do if not",
		Long: "Begins with what decides: whether VMs can run here or in an emulated host, and the daemon, its room, limits and\n" +
			"network. Then comes what fails; --all prints all checks. Exits with 1 if a check fails; warnings cost time, room or safety, and forkd runs without. Below a finding stands\n" +
			"the command that mends it. --fix gives those commands itself that change files of forkd's only, asks before those\n" +
			"that change this host (--yes: does not ask), leaves the others to you, and looks again.",
		Args: usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			if !fixing && (yes || dry) {
				return usageError{errors.New("--yes and --dry-run go with --fix")}
			}
			findings := diagnose(cmd.Context(), url, &tokens)
			if fixing && newFixer(cmd, yes, dry).fixAll(cmd.Context(), findings) {
				findings = merged(findings, diagnose(cmd.Context(), url, &tokens))
			}
			return report(cmd, findings, output == "json", all || fixing)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&all, "all", "a", false, "print all checks")
	f.BoolVarP(&all, "verbose", "v", false, "the same")
	f.BoolVar(&fixing, "fix", false, "mend what can be mended from here")
	f.BoolVarP(&yes, "yes", "y", false, "with --fix: do not ask before this host is changed")
	f.BoolVar(&dry, "dry-run", false, "with --fix: only say what would be done")
	f.StringVar(&url, "daemon-url", "", "daemon to look for; default as in the other commands")
	f.StringVar(&tokens.file, "token-file", "", "token file to look at (default that of 'forkd token')")
	f.StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

func diagnose(ctx context.Context, url string, tokens *tokenFlags) []finding {
	m, machine := checkMachine()
	inMachine := machine.Verdict == pass && url == "" && os.Getenv(urlEnv) == "" // as connect chooses
	findings := []finding{checkHWVirt(hostFile("/proc/cpuinfo")), checkKVM(machine.Verdict == pass), checkCgroup(),
		checkMemfd(), checkUffd()}
	findings = append(append(findings, checkHost()...), checkJails()...)
	if inMachine {
		findings = needless(findings)
	}
	findings = append([]finding{checkPlatform(), machine, checkEmbedded(), checkNetwork()}, findings...)
	if inMachine {
		findings = append(findings, checkMachineSpace(ctx, m)...)
	} else {
		findings = append(findings, checkOwnSpace()...)
		findings = append(findings, checkDirectories()...)
	}
	findings = append(findings, checkTokenFile(tokens), checkCache())
	return append(findings, checkDaemon(ctx, url)...)
}

// needless returns findings about this host's kernel for a host whose VMs run in an emulated one:
// that has a kernel of its own, so nothing is to be mended here.
func needless(findings []finding) []finding {
	for i, f := range findings {
		if f.Verdict == warn || f.Verdict == fail {
			findings[i] = found(f.Check, skip, f.Detail+" (no matter: VMs run in the emulated host)")
		}
	}
	return findings
}

// vmsRun sums up the checks of KVM and of the emulated host: either is enough.
func vmsRun(findings []finding) finding {
	const check = "VMs can run"
	for _, f := range findings {
		switch {
		case f.Check == "emulated host" && f.Verdict == pass:
			return found(check, pass, "in the emulated host "+f.Detail)
		case f.Check == "/dev/kvm" && f.Verdict == pass:
			return found(check, pass, "on this host: "+f.Detail)
		case f.Check == "/dev/kvm" && (f.Verdict == fail || f.Verdict == warn):
			return f
		}
	}
	return found(check, fail, "neither here nor in an emulated host").byHand("forkd machine start")
}

// foremost are the checks that decide whether forkd can be used, besides vmsRun.
var foremost = []string{"daemon", "disk space", "limits of sandboxes", "network of sandboxes"}

// first returns what to print unless all is asked for: what decides, and what fails.
func first(findings []finding) []finding {
	list := []finding{vmsRun(findings)}
	for _, name := range foremost {
		for _, f := range findings {
			if f.Check == name {
				list = append(list, f)
			}
		}
	}
	for _, f := range findings {
		if f.Verdict == fail && !slices.ContainsFunc(list, func(l finding) bool { return l.Check == f.Check }) {
			list = append(list, f)
		}
	}
	return list
}

// merged returns what a second look has found, with what was done after the first.
func merged(before, after []finding) []finding {
	for i := range after {
		for _, b := range before {
			if b.Check == after[i].Check && b.Fix != nil && b.Fix.Result != "" {
				after[i].Fix = b.Fix
			}
		}
	}
	return after
}

// report prints findings, and is the error of the command if a check has failed.
func report(cmd *cobra.Command, findings []finding, json, all bool) error {
	count := map[verdict]int{}
	for _, f := range findings {
		count[f.Verdict]++
	}
	out, more := cmd.OutOrStdout(), ""
	if !all && !json {
		findings, more = first(findings), "; all of them: forkd doctor --all"
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
					command = f.Fix.Command + f.Fix.outcome()
				}
				row(f.Check, f.Verdict, f.Detail, command)
			}
		})
	}
	if !json {
		fmt.Fprintf(cmd.ErrOrStderr(), "forkd: %d pass, %d warn, %d fail, %d skipped%s\n", count[pass], count[warn],
			count[fail], count[skip], more)
	}
	if err == nil && count[fail] > 0 {
		return exitCode(exitError)
	}
	return err
}

// printFindings is for people: details in lines of the terminal's width, and the fix below.
func printFindings(out io.Writer, width int, findings []finding) error {
	checks := 0
	for _, f := range findings {
		checks = max(checks, utf8.RuneCountInString(f.Check))
	}
	colours := map[verdict]string{pass: green, warn: yellow, fail: red, skip: ""}
	var text strings.Builder
	indent := strings.Repeat(" ", len("pass")+checks+2*tableGap)
	for _, f := range findings {
		v := string(f.Verdict)
		if c := colours[f.Verdict]; c != "" {
			v = coloured(out, c, v)
		}
		fmt.Fprintf(&text, "%s  %-*s  %s\n", v, checks, f.Check,
			strings.Join(wrapped(oneLine(f.Detail), width-len(indent)), "\n"+indent))
		if f.Fix != nil { // whole, for whoever copies it
			fmt.Fprintf(&text, "%s→ %s%s\n", indent, f.Fix.Command, f.Fix.outcome())
		}
	}
	_, err := io.WriteString(out, text.String())
	return err
}

// wrapped is text in lines of at most width, as far as its words allow.
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
