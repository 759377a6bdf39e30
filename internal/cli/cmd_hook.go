package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// hookOptions are the flags of `forkd hook`.
type hookOptions struct {
	common
	workspace string
	project   string
	install   bool
	uninstall bool
	tools     bool
	noPrompt  bool
	keep      int
}

func newHookCmd() *cobra.Command {
	o := &hookOptions{}
	cmd := &cobra.Command{
		Use:   "hook claude-code | codex | generic",
		Short: "Save an agent's workspace after each turn",
		Long: "Prints the setting that makes an agent call 'forkd turn', adds it to the agent's settings (--install) or\n" +
			"removes it (--uninstall). The rest of the file does not change. A file that cannot be parsed is not\n" +
			"changed.",
		Example:   "  forkd hook claude-code --workspace desk --install --project .",
		ValidArgs: []string{claudeCode, codex, generic},
		Args:      usageArgs(arguments(1, 1)),
		RunE:      o.run,
	}
	f := cmd.Flags()
	workspaceFlag(&o.common, cmd, &o.workspace)
	f.StringVar(&o.project, "project", "",
		"change the settings of the project in this directory instead of the user's; Claude Code only")
	f.BoolVar(&o.install, "install", false, "add the hook to the settings file")
	f.BoolVar(&o.uninstall, "uninstall", false, "remove the hook from the settings file")
	f.BoolVar(&o.tools, "tools", false, "also save after each tool call that changed something; Claude Code only")
	f.BoolVar(&o.noPrompt, "no-prompt", false, "do not save the prompt")
	f.IntVar(&o.keep, "keep", defaultKeep, "number of the workspace's turns to keep; 0: all")
	cmd.MarkFlagsMutuallyExclusive("install", "uninstall")
	o.register(cmd)
	return cmd
}

// settings is a settings file of an agent, with functions that add the hook to the file and remove
// the hook.
type settings struct {
	path   string
	add    func(text []byte) ([]byte, error) // text is empty if the file does not exist
	remove func(text []byte) ([]byte, error)
	sample string // lines that a user can add by hand
}

func (o *hookOptions) run(cmd *cobra.Command, args []string) error {
	if err := o.check(args[0]); err != nil {
		return usageError{err}
	}
	argv := o.command(args[0])
	if args[0] == generic {
		return o.print(cmd, "", shellLine(append(argv, "--prompt", "PROMPT"))+"\n")
	}
	s, err := o.settings(args[0], argv)
	if err != nil {
		return err
	}
	if !o.install && !o.uninstall {
		return o.print(cmd, s.path, s.sample)
	}
	edit := s.add
	if o.uninstall {
		edit = s.remove
	}
	file := ownSettings(s.path)
	if o.project != "" {
		project, err := os.OpenRoot(filepath.Dir(filepath.Dir(s.path)))
		if err != nil {
			return err
		}
		defer project.Close()
		file = projectSettings(project, filepath.Join(filepath.Base(filepath.Dir(s.path)), filepath.Base(s.path)))
	}
	changed, err := file.edit(edit)
	if err != nil {
		return err
	}
	if o.json() {
		return writeJSON(cmd.OutOrStdout(), map[string]any{"file": s.path, "changed": changed})
	}
	state := "was there already"
	switch {
	case changed && o.install:
		state = "was added"
	case changed:
		state = "was removed"
	case o.uninstall:
		state = "was not there"
	}
	printf(cmd.ErrOrStderr(), "forkd: %s: the hook %s\n", s.path, state)
	return nil
}

func (o *hookOptions) check(agent string) error {
	switch {
	case agent != claudeCode && agent != codex && agent != generic:
		return fmt.Errorf("agent %q: want %s, %s or %s", agent, claudeCode, codex, generic)
	case o.keep < 0:
		return fmt.Errorf("--keep %d: want 0 or more", o.keep)
	case agent == generic && (o.install || o.uninstall):
		return errors.New("generic: there is no settings file: have the agent call what this prints without --install")
	case agent == codex && o.project != "":
		return errors.New("--project: Codex ignores notify in the settings of a project; omit --project")
	case agent != claudeCode && o.tools:
		return errors.New("--tools: only Claude Code reports its tool calls")
	case o.workspace == "" && os.Getenv(workspaceEnv) == "" && !o.uninstall:
		return errors.New("say which workspace to save: --workspace NAME ('forkd workspace list' lists them)")
	}
	return checkOutput(o.output)
}

// command returns the command line of a hook. It uses the program's path if a shell cannot find the
// program by name.
func (o *hookOptions) command(agent string) []string {
	argv := []string{programName(), "turn", "--hook", agent, "--workspace", cmp.Or(o.workspace, os.Getenv(workspaceEnv))}
	if o.keep != defaultKeep {
		argv = append(argv, "--keep", fmt.Sprint(o.keep))
	}
	if o.noPrompt {
		argv = append(argv, "--no-prompt")
	}
	if o.url != "" {
		argv = append(argv, "--daemon-url", o.url)
	}
	if o.ca != "" {
		argv = append(argv, "--ca", o.ca)
	}
	return argv
}

// programName returns this program's name if a shell finds it by name, or else its path.
func programName() string {
	self, err := os.Executable()
	if err != nil {
		return "forkd"
	}
	found, err := exec.LookPath("forkd")
	if err != nil {
		return self
	}
	a, errA := os.Stat(self)
	b, errB := os.Stat(found)
	if errors.Join(errA, errB) == nil && os.SameFile(a, b) {
		return "forkd"
	}
	return self
}

// print prints the lines to add to the settings file. If the agent has no such file, it prints the
// command that the agent must call.
func (o *hookOptions) print(cmd *cobra.Command, path, sample string) error {
	if o.json() {
		return writeJSON(cmd.OutOrStdout(), map[string]string{"file": path, "add": sample})
	}
	if path == "" {
		printLine(cmd.ErrOrStderr(), "forkd: have the agent call this at the end of each turn:")
	} else {
		printf(cmd.ErrOrStderr(), "forkd: add this to %s, or have --install do it:\n", path)
	}
	io.WriteString(cmd.OutOrStdout(), sample)
	return nil
}

// settings returns the settings file of an agent.
func (o *hookOptions) settings(agent string, argv []string) (settings, error) {
	dir, err := o.settingsDir(agent)
	if err != nil {
		return settings{}, err
	}
	if agent == codex {
		line := codexNotify(argv)
		return settings{path: filepath.Join(dir, "config.toml"), sample: line,
			add:    func(text []byte) ([]byte, error) { return addNotify(text, line) },
			remove: removeNotify}, nil
	}
	events := claudeEvents(shellLine(argv), o.tools)
	sample, err := addClaudeHooks(nil, events)
	return settings{path: filepath.Join(dir, "settings.json"), sample: string(sample),
		add:    func(text []byte) ([]byte, error) { return addClaudeHooks(text, events) },
		remove: removeClaudeHooks}, err
}

// settingsDir returns the directory of an agent's settings.
func (o *hookOptions) settingsDir(agent string) (string, error) {
	variable, name := "CLAUDE_CONFIG_DIR", ".claude"
	if agent == codex {
		variable, name = "CODEX_HOME", ".codex"
	}
	if o.project != "" {
		dir, err := filepath.Abs(o.project)
		if err != nil {
			return "", err
		}
		if i, err := os.Stat(dir); err != nil || !i.IsDir() {
			return "", fmt.Errorf("--project %s: there is no such directory", o.project)
		}
		return filepath.Join(dir, name), nil
	}
	if dir := os.Getenv(variable); dir != "" {
		return dir, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(home, name), nil
}

// shellLine joins the words of a command for a shell.
func shellLine(argv []string) string {
	quotes := make([]string, len(argv))
	for i, a := range argv {
		quotes[i] = quotedIfNeeded(a)
	}
	return strings.Join(quotes, " ")
}
