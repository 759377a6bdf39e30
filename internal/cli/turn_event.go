package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// The agents whose hooks are supported. docs/undo.md lists their supported versions.
const (
	claudeCode = "claude-code"
	codex      = "codex"
	generic    = "generic"
)

// maxEvent bounds the input of a hook. The input may contain the output of a tool.
const maxEvent = 64 << 20 // bytes

// turnEvent is an event that an agent has reported to its hook.
type turnEvent struct {
	by      savedBy // why the turn is saved; empty: this event saves no turn
	agent   string
	session string
	id      string // id of the turn or the tool call; empty if the agent never reports an event twice
	text    string
}

// readEvent reads the event that an agent reports to its hook. Claude Code writes the event to
// standard input, and Codex passes it as the last argument.
func readEvent(ctx context.Context, agent string, in io.Reader, args []string) (e turnEvent, err error) {
	switch agent {
	case claudeCode:
		if len(args) > 0 {
			return e, fmt.Errorf("--hook %s: the event is read from standard input: want no arguments", agent)
		}
		var text []byte
		if text, err = readAll(ctx, in); err == nil {
			e, err = claudeEvent(text)
		}
	case codex:
		if len(args) != 1 {
			return e, fmt.Errorf("--hook %s: want one argument, the notification in JSON", agent)
		}
		e, err = codexEvent([]byte(args[0]))
	case generic, "":
		if len(args) > 0 {
			return e, errors.New("too many arguments: give the agent's prompt with --prompt")
		}
		e.by = byHand
	default:
		err = fmt.Errorf("--hook %q: want %s, %s or %s", agent, claudeCode, codex, generic)
	}
	e.agent = agent
	return e, err
}

// readAll reads its input to the end, or until ctx ends. An agent may never close its end of the
// pipe.
func readAll(ctx context.Context, in io.Reader) ([]byte, error) {
	type result struct {
		text []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		text, err := io.ReadAll(io.LimitReader(in, maxEvent+1))
		if err == nil && len(text) > maxEvent {
			err = fmt.Errorf("the event is longer than %d MiB", maxEvent>>20)
		}
		done <- result{text, err}
	}()
	select {
	case r := <-done:
		return r.text, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("read the event from standard input: %w", ctx.Err())
	}
}

// claudeEvent parses the input of a hook of Claude Code.
func claudeEvent(text []byte) (turnEvent, error) {
	var in struct {
		Session string          `json:"session_id"`
		Event   string          `json:"hook_event_name"`
		Prompt  string          `json:"prompt"`
		Tool    string          `json:"tool_name"`
		CallID  string          `json:"tool_use_id"`
		Input   json.RawMessage `json:"tool_input"`
	}
	if err := json.Unmarshal(text, &in); err != nil {
		return turnEvent{}, fmt.Errorf("--hook %s: the event is no JSON of a hook: %w", claudeCode, err)
	}
	e := turnEvent{session: in.Session}
	switch in.Event {
	case "":
		return e, fmt.Errorf("--hook %s: the event has no hook_event_name", claudeCode)
	case "UserPromptSubmit":
		e.by, e.text = byPrompt, in.Prompt
	case "Stop":
		e.by = byStop
	case "PostToolUse", "PostToolUseFailure":
		e.by, e.id = byTool, in.CallID
		var input struct {
			Command string `json:"command"`
			Path    string `json:"file_path"`
		}
		// Decoding fails for tools that do not belong to Claude Code, because the input of these
		// tools has other fields.
		_ = json.Unmarshal(in.Input, &input)
		e.text = strings.TrimSpace(in.Tool + " " + cmp.Or(input.Command, input.Path))
	}
	return e, nil
}

// codexEvent parses the event in the argument of Codex's notify program.
func codexEvent(text []byte) (turnEvent, error) {
	var in struct {
		Type   string   `json:"type"`
		Thread string   `json:"thread-id"`
		Turn   string   `json:"turn-id"`
		Inputs []string `json:"input-messages"`
	}
	if err := json.Unmarshal(text, &in); err != nil {
		return turnEvent{}, fmt.Errorf("--hook %s: the argument is no JSON of a notification: %w", codex, err)
	}
	e := turnEvent{session: in.Thread, id: in.Turn}
	switch in.Type {
	case "":
		return e, fmt.Errorf("--hook %s: the notification has no type", codex)
	case "agent-turn-complete":
		e.by = byStop
		if n := len(in.Inputs); n > 0 {
			e.text = in.Inputs[n-1]
		}
	}
	return e, nil
}
