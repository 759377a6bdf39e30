package vmmproto

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/forkd/forkd/internal/proto/codec"
)

// MaxText is the most that is kept of a text from a VMM, in bytes. The daemon keeps such texts for
// as long as a sandbox is listed, writes them to its log, and puts them into manifests.
const MaxText = 4 << 10

// Text returns a text from a VMM without anything that a terminal would obey, and at most MaxText
// bytes of it: the VMM's guest may have taken it over. Lines and tabs stay; other characters that
// cannot be printed become U+FFFD.
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

// textCut ends a text that was cut.
const textCut = " [...]"

// parseText takes a text that a VMM sent.
func parseText(r *codec.Reader) string { return Text(string(r.Blob())) }
