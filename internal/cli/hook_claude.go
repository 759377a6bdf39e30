package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// hookTimeout is how long Claude Code waits for a hook, in seconds. `forkd turn` gives up earlier,
// so that it can report the error.
const hookTimeout = 15

// claudeHook is a hook for an event in Claude Code's settings.
type claudeHook struct {
	event   string
	Matcher string          `json:"matcher,omitempty"`
	Hooks   []claudeCommand `json:"hooks"`
}

type claudeCommand struct {
	Type    string `json:"type"`
	Command string `json:"command"`
	Timeout int    `json:"timeout"` // seconds
}

// claudeEvents returns the hooks that make Claude Code run the given command line. If tools is
// true, calls of tools are also reported.
func claudeEvents(command string, tools bool) []claudeHook {
	hooks := []claudeCommand{{"command", command, hookTimeout}}
	list := []claudeHook{{event: "UserPromptSubmit", Hooks: hooks}, {event: "Stop", Hooks: hooks}}
	if tools {
		list = append(list, claudeHook{event: "PostToolUse", Matcher: "*", Hooks: hooks})
	}
	return list
}

// ownClaudeCommand matches the commands that claudeEvents writes.
var ownClaudeCommand = regexp.MustCompile(`^('[^']*'|\S+) turn --hook claude-code( |$)`)

// addClaudeHooks adds hooks to the settings of Claude Code. It replaces the hooks that an earlier
// installation has added.
func addClaudeHooks(text []byte, list []claudeHook) ([]byte, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		text = []byte("{}\n")
	}
	there, err := ownHooks(text)
	if err != nil {
		return nil, err
	}
	if sameHooks(there, list) {
		return text, nil
	}
	if text, err = removeClaudeHooks(text); err != nil {
		return nil, err
	}
	for _, h := range list {
		if text, err = addClaudeHook(text, h); err != nil {
			return nil, err
		}
	}
	return text, nil
}

func addClaudeHook(text []byte, h claudeHook) ([]byte, error) {
	root, hooks, err := claudeSettings(text)
	if err != nil {
		return nil, err
	}
	item, err := jsonLines(h)
	if err != nil {
		return nil, err
	}
	if hooks == nil {
		item = strings.ReplaceAll(item, "\n", "\n    ")
		return insertJSON(text, root, "\"hooks\": {\n  \""+h.event+"\": [\n    "+item+"\n  ]\n}"), nil
	}
	event, err := hooks.member(h.event)
	if err != nil {
		return nil, err
	}
	if event == nil {
		return insertJSON(text, hooks, "\""+h.event+"\": [\n  "+strings.ReplaceAll(item, "\n", "\n  ")+"\n]"), nil
	}
	return insertJSON(text, event, item), nil
}

func jsonLines(v any) (string, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // settings are not embedded in HTML
	enc.SetIndent("", "  ")
	err := enc.Encode(v)
	return strings.TrimSpace(b.String()), err
}

// claudeSettings parses settings. It returns the settings and their hooks. If the settings have no
// hooks, the second result is nil.
func claudeSettings(text []byte) (root, hooks *jsonNode, err error) {
	if root, err = parseJSON(text); err != nil {
		return nil, nil, err
	}
	if root.kind != '{' {
		return nil, nil, errors.New("it is not a JSON object")
	}
	hooks, err = root.member("hooks")
	if err != nil || hooks == nil {
		return root, nil, err
	}
	if hooks.kind != '{' {
		return nil, nil, errors.New("hooks is not a JSON object")
	}
	for _, event := range hooks.members {
		if event.value.kind != '[' {
			return nil, nil, fmt.Errorf("hooks.%s is not a JSON array", event.key)
		}
	}
	return root, hooks, nil
}

// isOwnHook reports whether an item of an event was added by addClaudeHooks. Such an item has only
// one command, which runs this program. An item to which a user has added another command does not
// count.
func isOwnHook(item *jsonNode) bool {
	hooks, err := item.member("hooks")
	if err != nil || hooks == nil || len(hooks.members) != 1 {
		return false
	}
	command, err := hooks.members[0].value.member("command")
	return err == nil && command != nil && ownClaudeCommand.MatchString(command.text)
}

// ownHooks returns the hooks that an earlier installation has added.
func ownHooks(text []byte) (list []claudeHook, err error) {
	_, hooks, err := claudeSettings(text)
	if err != nil || hooks == nil {
		return nil, err
	}
	for _, event := range hooks.members {
		for _, item := range event.value.members {
			if !isOwnHook(item.value) {
				continue
			}
			h := claudeHook{event: event.key}
			// If the user has edited the hook, h differs from the hook that installation wrote.
			_ = json.Unmarshal(text[item.value.start:item.value.end], &h)
			list = append(list, h)
		}
	}
	return list, nil
}

// sameHooks compares hooks regardless of their order.
func sameHooks(a, b []claudeHook) bool {
	if len(a) != len(b) {
		return false
	}
	count := map[string]int{}
	for _, h := range a {
		count[fmt.Sprint(h)]++
	}
	for _, h := range b {
		count[fmt.Sprint(h)]--
	}
	for _, n := range count {
		if n != 0 {
			return false
		}
	}
	return true
}

// removeClaudeHooks removes the hooks of this program from settings. It also removes lists and
// objects that are then empty.
func removeClaudeHooks(text []byte) ([]byte, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return text, nil
	}
	for {
		root, hooks, err := claudeSettings(text)
		if err != nil || hooks == nil {
			return text, err
		}
		event, item := findOwnHook(hooks)
		switch {
		case event < 0:
			return text, nil
		case len(hooks.members[event].value.members) > 1:
			text = removeJSON(text, hooks.members[event].value, item)
		case len(hooks.members) > 1:
			text = removeJSON(text, hooks, event)
		default:
			for i, m := range root.members {
				if m.value == hooks {
					text = removeJSON(text, root, i)
				}
			}
		}
	}
}

// findOwnHook finds the first hook of this program. It returns the index of the hook's event and
// the index of the hook's item, or -1 if there is no such hook.
func findOwnHook(hooks *jsonNode) (event, item int) {
	for event, e := range hooks.members {
		for item, m := range e.value.members {
			if isOwnHook(m.value) {
				return event, item
			}
		}
	}
	return -1, -1
}
