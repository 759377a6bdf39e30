package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// notifyComment is the comment above the line that addNotify adds.
const notifyComment = "# By 'forkd hook codex --install'; --uninstall takes it out.\n"

// codexNotify returns the line for Codex's settings that calls a program at the end of each turn.
func codexNotify(argv []string) string {
	words := make([]string, len(argv))
	for i, w := range argv {
		p, _ := json.Marshal(w) // a JSON string is also a valid TOML string; encoding a string never fails
		words[i] = string(p)
	}
	return notifyComment + "notify = [" + strings.Join(words, ", ") + "]\n"
}

// readTOML parses a settings file. It also returns the command line of the program that Codex
// notifies.
func readTOML(text []byte) (all map[string]any, notify []string, err error) {
	all = map[string]any{}
	if err := toml.Unmarshal(text, &all); err != nil {
		return nil, nil, fmt.Errorf("it is not valid TOML: %w", err)
	}
	value, ok := all["notify"]
	if !ok {
		return all, nil, nil
	}
	list, _ := value.([]any)
	for _, w := range list {
		text, _ := w.(string)
		notify = append(notify, text)
	}
	if len(notify) == 0 {
		return nil, nil, errors.New("notify is not a list of words")
	}
	return all, notify, nil
}

// ownNotify reports whether a notify program is this program.
func ownNotify(words []string) bool {
	return len(words) > 3 && slices.Equal(words[1:4], []string{"turn", "--hook", codex})
}

// addNotify adds the line of codexNotify, and replaces an earlier line. If Codex notifies another
// program, addNotify returns an error, because Codex supports only one.
func addNotify(text []byte, line string) ([]byte, error) {
	all, words, err := readTOML(text)
	if err != nil {
		return nil, err
	}
	if words != nil && !ownNotify(words) {
		return nil, fmt.Errorf("notify is %q already, and Codex calls one program only: have that program call what "+
			"'forkd hook codex' prints, with its own last argument at the end", strings.Join(words, " "))
	}
	if bytes.Contains(text, []byte(line)) {
		return text, nil
	}
	if text, err = removeNotify(text); err != nil {
		return nil, err
	}
	if len(text) > 0 {
		line += "\n"
	}
	// Add the line at the beginning, because after a table's heading the line would belong to the
	// table.
	added := append([]byte(line), text...)
	return added, sameButNotify(all, added)
}

// removeNotify removes the line that addNotify added.
func removeNotify(text []byte) ([]byte, error) {
	all, words, err := readTOML(text)
	if err != nil || !ownNotify(words) {
		return text, err
	}
	lines := slices.Collect(bytes.Lines(text))
	i := slices.IndexFunc(lines, func(l []byte) bool {
		_, found, err := readTOML(l)
		return err == nil && ownNotify(found)
	})
	if i < 0 {
		return nil, errors.New("notify calls forkd, on several lines: remove it by hand")
	}
	from, to := i, i+1
	if i > 0 && string(lines[i-1]) == notifyComment {
		from--
		if to < len(lines) && len(bytes.TrimSpace(lines[to])) == 0 {
			to++
		}
	}
	rest := bytes.Join(slices.Delete(lines, from, to), nil)
	return rest, sameButNotify(all, rest)
}

// sameButNotify compares two forms of settings: parsed (all) and as text. It returns an error if
// they differ in anything other than the key "notify".
func sameButNotify(all map[string]any, text []byte) error {
	now, _, err := readTOML(text)
	if err != nil {
		return err
	}
	delete(now, "notify")
	was := make(map[string]any, len(all))
	for k, v := range all {
		if k != "notify" {
			was[k] = v
		}
	}
	if !reflect.DeepEqual(was, now) {
		return errors.New("notify could not be changed without changing other settings: change it by hand")
	}
	return nil
}
