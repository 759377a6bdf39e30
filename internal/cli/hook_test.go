package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"github.com/forkd/forkd/client"
)

// hookRun runs `forkd hook` with a home directory of its own.
func hookRun(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, err bytes.Buffer
	code = Main(append([]string{"hook"}, args...), Stdio{In: strings.NewReader(""), Out: &out, Err: &err})
	return out.String(), err.String(), code
}

func hookHome(t *testing.T) string {
	t.Helper()
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("CLAUDE_CONFIG_DIR", "")
	t.Setenv("CODEX_HOME", "")
	t.Setenv(workspaceEnv, "")
	return home
}

// others are settings of Claude Code that installing and removing the hooks must not change.
var others = []string{
	"{}\n",
	"{}",
	`{"model":"opus","hooks":{"Stop":[{"hooks":[{"type":"command","command":"say done"}]}]}}`,
	`{
  "permissions": {
    "allow": ["Bash(go test:*)",  "Read"],
    "deny": []
  },
  "cleanupPeriodDays": 12345678901234567890,
  "env": {"A": "<b> & \u00e4"}
}
`,
	`{
	"hooks": {
		"PreToolUse": [
			{
				"matcher": "Bash",
				"hooks": [
					{ "type": "command", "command": "./check.sh", "timeout": 5 }
				]
			}
		],
		"Stop": [
			{ "hooks": [ { "type": "command", "command": "forkd turns >/dev/null" } ] }
		]
	},
	"model": "opus"
}
`,
	"{\r\n  \"a\": 1e400,\r\n  \"b\": [\r\n  ]\r\n}",
}

func TestInstallClaudeHooks(t *testing.T) {
	for _, before := range others {
		home := hookHome(t)
		path := filepath.Join(home, ".claude", "settings.json")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(before), 0o640); err != nil {
			t.Fatal(err)
		}
		install := []string{"claude-code", "--workspace", "desk", "--install", "--tools"}
		if _, err, code := hookRun(t, install...); code != 0 || !strings.Contains(err, "was added") {
			t.Fatalf("%d, %s", code, err)
		}
		added, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		wantClaudeHooks(t, before, added)
		if _, err, code := hookRun(t, install...); code != 0 || !strings.Contains(err, "was there already") {
			t.Errorf("again: %d, %s", code, err)
		}
		if again, _ := os.ReadFile(path); !bytes.Equal(again, added) {
			t.Errorf("again: changed to\n%s", again)
		}
		if _, err, code := hookRun(t, "claude-code", "--workspace", "other", "--install"); code != 0 ||
			!strings.Contains(err, "was added") {
			t.Errorf("for another workspace: %d, %s", code, err)
		}
		if now, _ := os.ReadFile(path); strings.Contains(string(now), "desk") ||
			strings.Count(string(now), "--workspace other") != 2 {
			t.Errorf("for another workspace:\n%s", now)
		}
		if _, err, code := hookRun(t, "claude-code", "--uninstall"); code != 0 || !strings.Contains(err, "was removed") {
			t.Errorf("uninstall: %d, %s", code, err)
		}
		if now, _ := os.ReadFile(path); string(now) != before {
			t.Errorf("left\n%s\nof\n%s", now, before)
		}
		if i, err := os.Stat(path); err != nil || i.Mode().Perm() != 0o640 {
			t.Errorf("%v, %v", i.Mode(), err)
		}
		if _, err, code := hookRun(t, "claude-code", "--uninstall"); code != 0 || !strings.Contains(err, "was not there") {
			t.Errorf("uninstall again: %d, %s", code, err)
		}
	}
}

// wantClaudeHooks compares settings before and after an installation. The new settings must have
// three more hooks, and no other difference.
func wantClaudeHooks(t *testing.T, before string, after []byte) {
	t.Helper()
	type item struct {
		Matcher string `json:"matcher"`
		Hooks   []struct {
			Type, Command string
			Timeout       int
		} `json:"hooks"`
	}
	var was, now struct {
		Hooks map[string][]item `json:"hooks"`
	}
	if err := json.Unmarshal([]byte(before), &was); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(after, &now); err != nil {
		t.Fatalf("%v in\n%s", err, after)
	}
	for event, matcher := range map[string]string{"UserPromptSubmit": "", "Stop": "", "PostToolUse": "*"} {
		list := now.Hooks[event]
		if len(list) != len(was.Hooks[event])+1 {
			t.Fatalf("%s: %+v", event, list)
		}
		last := list[len(list)-1]
		if len(last.Hooks) != 1 || last.Matcher != matcher || last.Hooks[0].Type != "command" ||
			last.Hooks[0].Timeout != hookTimeout ||
			!strings.HasSuffix(last.Hooks[0].Command, " turn --hook claude-code --workspace desk") {
			t.Errorf("%s: %+v", event, last)
		}
	}
	for event, list := range was.Hooks {
		if len(now.Hooks[event]) < len(list) {
			t.Errorf("%s: %+v, had %+v", event, now.Hooks[event], list)
		}
	}
}

// Installation creates a missing settings file. If the user's settings are a link, the link stays.
func TestInstallMakesTheFile(t *testing.T) {
	home := hookHome(t)
	project := t.TempDir()
	if _, err, code := hookRun(t, "claude-code", "-w", "desk", "--install", "--project", project); code != 0 {
		t.Fatalf("%d, %s", code, err)
	}
	path := filepath.Join(project, ".claude", "settings.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sample, _, _ := hookRun(t, "claude-code", "-w", "desk", "--project", project)
	if sample != string(text) {
		t.Errorf("printed\n%s\nand installed\n%s", sample, text)
	}
	var doc any
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	if pretty, err := json.MarshalIndent(doc, "", "  "); err != nil || len(pretty)+1 != len(text) {
		t.Errorf("not indented as Claude Code does it:\n%s", text)
	}
	kept := filepath.Join(home, "kept.json")
	if err := os.Rename(path, kept); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(home, ".claude", "settings.json")
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(kept, path); err != nil {
		t.Fatal(err)
	}
	if _, err, code := hookRun(t, "claude-code", "--uninstall"); code != 0 {
		t.Fatalf("%d, %s", code, err)
	}
	if to, err := os.Readlink(path); err != nil || to != kept {
		t.Errorf("the link leads to %q, %v", to, err)
	}
	if text, _ := os.ReadFile(kept); string(text) != "{}\n" {
		t.Errorf("left %q", text)
	}
}

// If a user has added a command to the list of a hook, removal leaves it there.
func TestUninstallLeavesWhatWasEdited(t *testing.T) {
	const edited = `{"hooks": {"Stop": [{"hooks": [
  {"type": "command", "command": "/opt/forkd turn --hook claude-code --workspace desk"},
  {"type": "command", "command": "say done"}]}]}}`
	now, err := removeClaudeHooks([]byte(edited))
	if err != nil || string(now) != edited {
		t.Errorf("%s, %v", now, err)
	}
}

// Settings that cannot be read or parsed are refused and left unchanged.
func TestRefusedSettings(t *testing.T) {
	for _, c := range []struct{ agent, text, want string }{
		{"claude-code", "{", "not valid JSON"},
		{"claude-code", `{"a": 1,}`, "not valid JSON"},
		{"claude-code", "// mine\n{}", "not valid JSON"},
		{"claude-code", "{} {}", "follows the first value"},
		{"claude-code", "[]", "not a JSON object"},
		{"claude-code", `{"hooks": []}`, "hooks is not a JSON object"},
		{"claude-code", `{"hooks": {"Stop": {}}}`, "hooks.Stop is not a JSON array"},
		{"claude-code", `{"hooks": {}, "hooks": {}}`, "twice"},
		{"claude-code", strings.Repeat("[", 200) + strings.Repeat("]", 200), "deep"},
		{"codex", "model = ", "not valid TOML"},
		{"codex", "notify = \"say\"\n", "not a list of words"},
		{"codex", "notify = [\"say\", \"done\"]\n", "say done"},
	} {
		home := hookHome(t)
		path := filepath.Join(home, ".claude", "settings.json")
		if c.agent == "codex" {
			path = filepath.Join(home, ".codex", "config.toml")
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err, code := hookRun(t, c.agent, "-w", "desk", "--install")
		if code != exitError || !strings.Contains(err, c.want) || !strings.Contains(err, path+": left as it is") {
			t.Errorf("%s %.40q: %d, %s", c.agent, c.text, code, err)
		}
		if now, _ := os.ReadFile(path); string(now) != c.text {
			t.Errorf("%.40q: changed to %q", c.text, now)
		}
		if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
			t.Errorf("%.40q: left %v", c.text, left)
		}
	}
}

// A project's settings are not written through a link, wherever the link leads.
func TestLinksOfAProjectAreRefused(t *testing.T) {
	hookHome(t)
	for name, link := range map[string]func(project, outside string) (link, to string){
		"directory": func(project, outside string) (string, string) {
			return filepath.Join(project, ".claude"), outside
		},
		"file": func(project, outside string) (string, string) {
			return filepath.Join(project, ".claude", "settings.json"), filepath.Join(outside, "settings.json")
		},
		"new file": func(project, outside string) (string, string) {
			return filepath.Join(project, ".claude", "settings.json"), filepath.Join(outside, "new.json")
		},
		"inside": func(project, _ string) (string, string) {
			return filepath.Join(project, ".claude", "settings.json"), "../package.json"
		},
	} {
		for _, action := range []string{"--install", "--uninstall"} {
			project, outside := t.TempDir(), t.TempDir()
			at, to := link(project, outside)
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(to, at); err != nil {
				t.Fatal(err)
			}
			for _, file := range []string{filepath.Join(outside, "settings.json"), filepath.Join(project, "package.json")} {
				if err := os.WriteFile(file, []byte("{ }"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			_, msg, code := hookRun(t, "claude-code", "-w", "desk", action, "--project", project)
			if code != exitError || !strings.Contains(msg, at+" is a symbolic link") {
				t.Errorf("%s, %s: %d, %s", name, action, code, msg)
			}
			for _, file := range []string{filepath.Join(outside, "settings.json"), filepath.Join(project, "package.json")} {
				if text, err := os.ReadFile(file); err != nil || string(text) != "{ }" {
					t.Errorf("%s, %s: %s has %q, %v", name, action, file, text, err)
				}
			}
			if list, _ := os.ReadDir(outside); len(list) != 1 {
				t.Errorf("%s, %s: outside there are %v", name, action, list)
			}
		}
	}
}

// A settings file may be a link to a device whose content has no end. It is refused.
func TestSettingsThatAreNoFile(t *testing.T) {
	home := hookHome(t)
	path := filepath.Join(home, ".claude", "settings.json")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/zero", path); err != nil {
		t.Fatal(err)
	}
	_, err, code := hookRun(t, "claude-code", "-w", "desk", "--install")
	if code != exitError || !strings.Contains(err, "want a regular file") {
		t.Errorf("%d, %s", code, err)
	}
}

func TestInstallCodexNotify(t *testing.T) {
	for _, before := range []string{
		"",
		"model = \"gpt-5\"\n\n[tui]\nnotifications = true\n",
		"[mcp_servers.forkd]\ncommand = \"forkd\"\nargs = [\"mcp\"]\n\n# the end",
		"text = \"\"\"\nnotify = [\"forkd\", \"turn\", \"--hook\", \"codex\"]\n\"\"\"\n",
	} {
		home := hookHome(t)
		path := filepath.Join(home, ".codex", "config.toml")
		if before != "" {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(before), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			if _, err, code := hookRun(t, "codex", "-w", "desk", "--install", "--keep", "5"); code != 0 {
				t.Fatalf("%d, %s", code, err)
			}
		}
		var was, now map[string]any
		if err := toml.Unmarshal([]byte(before), &was); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := toml.Unmarshal(text, &now); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		words, _ := now["notify"].([]any)
		if len(words) != 8 || words[1] != "turn" || words[3] != "codex" || words[5] != "desk" || words[7] != "5" ||
			len(now) != len(was)+1 {
			t.Errorf("%q:\n%s", before, text)
		}
		if _, err, code := hookRun(t, "codex", "-w", "other", "--install"); code != 0 {
			t.Errorf("%d, %s", code, err)
		}
		if text, _ := os.ReadFile(path); strings.Contains(string(text), "desk") ||
			!strings.Contains(string(text), `"other"`) {
			t.Errorf("for another workspace:\n%s", text)
		}
		if _, err, code := hookRun(t, "codex", "--uninstall"); code != 0 {
			t.Errorf("%d, %s", code, err)
		}
		if left, _ := os.ReadFile(path); string(left) != before {
			t.Errorf("left %q of %q", left, before)
		}
	}
}

func TestHookUsage(t *testing.T) {
	hookHome(t)
	for _, c := range []struct{ args, want string }{
		{"claude-code", "--workspace"},
		{"other -w desk", "claude-code, codex or generic"},
		{"generic -w desk --install", "no settings file"},
		{"codex -w desk --project .", "ignores notify"},
		{"codex -w desk --tools", "--tools"},
		{"claude-code -w desk --keep -1", "--keep"},
		{"claude-code -w desk --install --uninstall", "install"},
	} {
		if _, err, code := hookRun(t, strings.Fields(c.args)...); code != exitUsage && code != exitError ||
			!strings.Contains(err, c.want) {
			t.Errorf("%s: %d, %s", c.args, code, err)
		}
	}
	if _, err, code := hookRun(t, "claude-code", "-w", "desk", "--project", "/does/not/exist"); code != exitError ||
		!strings.Contains(err, "no such directory") {
		t.Errorf("%d, %s", code, err)
	}
	out, _, code := hookRun(t, "generic", "-w", "my desk", "--no-prompt")
	if code != 0 || !strings.HasSuffix(out, " turn --hook generic --workspace 'my desk' --no-prompt --prompt PROMPT\n") {
		t.Errorf("%d, %s", code, out)
	}
	if out, _, code := hookRun(t, "codex", "-w", "desk", "-o", "json"); code != 0 || !json.Valid([]byte(out)) {
		t.Errorf("%d, %s", code, out)
	}
}

// A tag chosen by a user cannot make the number of the next turn overflow.
func TestNumberOfTheNextTurn(t *testing.T) {
	all := map[string]client.Snapshot{}
	for _, tag := range []string{"desk-turn-3", "desk-turn-9223372036854775807", "desk-turn-x", "else-turn-8"} {
		all[tag] = client.Snapshot{Tag: tag}
	}
	if n := (&turns{name: "desk", all: all}).next(); n != 4 {
		t.Errorf("turn %d, want 4", n)
	}
}
