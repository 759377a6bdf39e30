package cli

import (
	"regexp"
	"strings"
	"testing"
)

// Each hint refers to a command that exists, and is given for a command that does not exist.
func TestHintsNameCommandsThatAreHere(t *testing.T) {
	root := newRoot(Stdio{})
	isHere := func(name string) bool {
		found, _, err := root.Find(strings.Fields(name))
		return err == nil && found != root
	}
	for name := range elsewhere {
		if isHere(name) {
			t.Errorf("%q is a command: it needs no hint", name)
		}
	}
	for group, names := range groups {
		if _, has := elsewhere[group]; !has || isHere(group) {
			t.Errorf("%q stands before commands, and wants a hint where it stands alone", group)
		}
		for _, name := range names {
			if !isHere(name) {
				t.Errorf("%q is no command", name)
			}
		}
	}
	texts := []string{}
	for _, text := range elsewhere {
		texts = append(texts, text)
	}
	for _, text := range unknownFlags {
		texts = append(texts, text)
	}
	named := regexp.MustCompile(`'forkd ([a-z-]+)`)
	for _, text := range texts {
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			if !isHere(m[1]) {
				t.Errorf("%q names the command %q, which is not here", text, m[1])
			}
		}
	}
}
