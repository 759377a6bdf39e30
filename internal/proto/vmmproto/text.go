package vmmproto

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/forkd/forkd/internal/proto/codec"
)

// MaxText bounds a text of a VMM, in bytes. The daemon keeps such texts for as long as a sandbox is
// listed, and writes them to its log and to manifests.
const MaxText = 4 << 10

// Text returns up to MaxText bytes of a text of a VMM. It removes terminal control sequences,
// because a guest may control the VMM. Line feeds and tabs stay. Other characters that are not
// printable become U+FFFD.
func Text(text string) string {
	cut := len(text) > MaxText
	var out strings.Builder
	for _, r := range text[:min(len(text), MaxText)] {
		if r != '\n' && r != '\t' && !strconv.IsPrint(r) {
			r = utf8.RuneError
		}
		if out.Len()+utf8.RuneLen(r) > MaxText-len(textCut) {
			cut = true
			break
		}
		out.WriteRune(r)
	}
	if cut {
		out.WriteString(textCut)
	}
	return out.String()
}

// textCut is the mark at the end of a text that was shortened.
const textCut = " [...]"

// parseText parses a text that a VMM has sent.
func parseText(r *codec.Reader) string { return Text(string(r.Blob())) }
