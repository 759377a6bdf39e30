package vmmproto

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/forkd/forkd/internal/proto/codec"
)

// MaxText bounds a stored text of a VMM, in bytes. The daemon keeps such texts as long as a sandbox
// is listed, and writes them to its log and into manifests.
const MaxText = 4 << 10

// Text returns at most MaxText bytes of a text of a VMM. It removes terminal control sequences,
// because the guest may have taken over the VMM. Line feeds and tabs stay; other unprintable
// characters become U+FFFD.
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

// textCut marks the end of a text that was cut.
const textCut = " [...]"

// parseText parses a text that a VMM sent.
func parseText(r *codec.Reader) string { return Text(string(r.Blob())) }
