package diffproto

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// noNewline follows the last line of a file in a hunk if the file does not end with a newline.
const noNewline = "\\ No newline at end of file\n"

// checkHunks returns an error if patch contains anything but hunks of a unified diff, or if the
// number of lines in a hunk differs from the number in its header. If a hunk had fewer lines, a
// program that applies patches would read a line such as "+++ b/x" as the beginning of another
// file.
func checkHunks(patch string) error {
	var old, now uint64 // numbers of lines of the old and the new side that the hunk still lacks
	text := false       // whether the previous line is a line of a file
	for line := range strings.Lines(patch) {
		mark := line[0]
		inOld, inNow := mark == ' ' || mark == '-', mark == ' ' || mark == '+'
		switch {
		case !strings.HasSuffix(line, "\n"):
			return fmt.Errorf("a line of a patch without an end: %.100q", line)
		case line == noNewline && text:
			text = false
			continue
		case old == 0 && now == 0:
			var err error
			if old, now, err = parseHunk(line); err != nil {
				return err
			}
			text = false
			continue
		case !inOld && !inNow, inOld && old == 0, inNow && now == 0:
			return fmt.Errorf("a line of a patch: %.100q", line)
		}
		if text = true; inOld {
			old--
		}
		if inNow {
			now--
		}
	}
	if old > 0 || now > 0 {
		return errors.New("a patch that ends within a hunk")
	}
	return nil
}

// parseHunk returns the numbers of lines in the header of a hunk, such as "@@ -1,2 +1 @@".
func parseHunk(line string) (old, now uint64, err error) {
	text, isHead := strings.CutPrefix(line, "@@ -")
	text, isWhole := strings.CutSuffix(text, " @@\n")
	before, after, isPair := strings.Cut(text, " +")
	old, err1 := parseSpan(before)
	now, err2 := parseSpan(after)
	if !isHead || !isWhole || !isPair || err1 != nil || err2 != nil || old == 0 && now == 0 {
		return 0, 0, fmt.Errorf("the header of a hunk: %.100q", line)
	}
	return old, now, nil
}

// parseSpan returns the number of lines of a range such as "1,2", or 1 for a range such as "1".
func parseSpan(text string) (lines uint64, err error) {
	start, count, isLong := strings.Cut(text, ",")
	if !isLong {
		count = "1"
	}
	if _, err := strconv.ParseUint(start, 10, 32); err != nil {
		return 0, err
	}
	return strconv.ParseUint(count, 10, 32)
}
