package lint

import (
	"bytes"
	"encoding/xml"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

var update = flag.Bool("update", false, "write docs/session.svg anew")

// Layout of the picture in pixels, and timing in seconds.
const (
	cellWidth, lineHeight = 8.2, 21.0 // size of a character of the text
	margin                = 18.0
	bar                   = 30.0 // height of the bar at the top of the window
	perKey                = 0.022
	beforeCommand         = 0.5
	beforeOutput          = 0.35
	perLine               = 0.12
)

const sessionStyle = `
text { font: 13.6px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre }
.in { fill: #e6edf3 } .out { fill: #7ee787 } .note { fill: #8b949e } .sign { fill: #58a6ff }
.line { opacity: 0; animation: on 0s linear forwards }
.hide { animation: off linear forwards }
@keyframes on { to { opacity: 1 } }
@keyframes off { to { transform: translateX(var(--width)) } }
@media (prefers-reduced-motion: reduce) { .line { opacity: 1; animation: none } .hide { display: none } }
`

// docs/session.svg shows the session at the beginning of README.md. An integration test compares
// that session with the output of real sandboxes. `go test ./internal/lint -run Session -update`
// redraws the picture.
func TestSessionPicture(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, session, ok := strings.Cut(string(readme), "```console\n")
	session, _, ends := strings.Cut(session, "\n```")
	if !ok || !ends {
		t.Fatal("README.md has no session")
	}
	want := drawSession(strings.Split(session, "\n"))
	path := filepath.Join(root, "docs", "session.svg")
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not what README.md's session looks like (%v): draw it with -update", path, err)
	}
}

// drawSession returns an SVG in which a terminal shows the lines, one after another. A line that
// begins with "$ " appears character by character, up to its comment.
func drawSession(lines []string) []byte {
	columns := 0
	for _, line := range lines {
		columns = max(columns, utf8.RuneCountInString(line))
	}
	width := 2*margin + cellWidth*float64(columns)
	height := bar + margin + lineHeight*float64(len(lines)) + margin/2
	var out bytes.Buffer
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" role="img" aria-label="A session">
<style>%s</style>
<rect width="100%%" height="100%%" rx="9" fill="#0d1117"/>
`, width, height, sessionStyle)
	for i, color := range []string{"#ff5f57", "#febc2e", "#28c840"} {
		fmt.Fprintf(&out, `<circle cx="%.0f" cy="%.0f" r="5.5" fill="%s"/>`+"\n", margin+float64(i)*18, bar/2+3, color)
	}
	clock := 0.0
	for i, line := range lines {
		y := bar + margin + lineHeight*float64(i)
		typed, isCommand := strings.CutPrefix(line, "$ ")
		if !isCommand {
			clock += perLine
			if i > 0 && strings.HasPrefix(lines[i-1], "$ ") {
				clock += beforeOutput
			}
			fmt.Fprintf(&out, `<g class="line" style="animation-delay:%.2fs">%s</g>`+"\n", clock,
				drawText(margin, y, "out", line))
			continue
		}
		clock += beforeCommand
		command, note := typed, ""
		if at := strings.Index(typed, " # "); at >= 0 {
			command, note = strings.TrimRight(typed[:at], " "), typed[at+1:]
		}
		keys := utf8.RuneCountInString(command)
		took, x, covered := perKey*float64(keys), margin+2*cellWidth, cellWidth*float64(keys)
		fmt.Fprintf(&out, `<g class="line" style="animation-delay:%.2fs">%s%s`, clock,
			drawText(margin, y, "sign", "$"), drawText(x, y, "in", command))
		fmt.Fprintf(&out, `<rect class="hide" x="%.1f" y="%.1f" width="%.1f" height="%.0f" fill="#0d1117" `+
			`style="--width:%.1fpx;animation-duration:%.2fs;animation-timing-function:steps(%d);`+
			// Add one step, because a browser may omit the last step.
			`animation-delay:%.2fs"/></g>`+"\n", x, y-lineHeight+6, covered, lineHeight, covered+cellWidth, took, keys+1, clock)
		clock += took
		if note != "" {
			clock += perLine
			at := x + cellWidth*float64(utf8.RuneCountInString(typed)-utf8.RuneCountInString(note))
			fmt.Fprintf(&out, `<g class="line" style="animation-delay:%.2fs">%s</g>`+"\n", clock,
				drawText(at, y, "note", note))
		}
	}
	out.WriteString("</svg>\n")
	return out.Bytes()
}

// drawText places each text at its position in the terminal's grid. So the picture does not depend
// on the width of the reader's font.
func drawText(x, y float64, class, text string) string {
	if text == "" {
		return ""
	}
	var escaped bytes.Buffer
	_ = xml.EscapeText(&escaped, []byte(text)) // writing to a buffer never fails
	return fmt.Sprintf(`<text class="%s" x="%.1f" y="%.1f" xml:space="preserve" textLength="%.1f" lengthAdjust="spacingAndGlyphs">%s</text>`,
		class, x, y, cellWidth*float64(utf8.RuneCountInString(text)), escaped.Bytes())
}
