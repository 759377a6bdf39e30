// Package excerpt quotes a guest's output in error messages. The output comes from the guest's
// console or from a command. The package selects the lines that help most, and removes control
// sequences for terminals.
//
// It reads no files, and only formats the text.
package excerpt

import (
	"bytes"
	"strings"
)

// maxLine is the maximum length of a quoted line, in bytes. It is needed because the guest chooses
// the line.
const maxLine = 200

// Console returns the lines of a console that help most in an error message: the kernel's panic
// line, if there is one, and the last n lines.
func Console(console []byte, n int) string {
	console = withoutNoise(console)
	tail := Lines(console, n)
	i := bytes.LastIndex(console, []byte("Kernel panic"))
	if i < 0 {
		return tail
	}
	line, _, _ := bytes.Cut(console[i:], []byte("\n"))
	if panicLine := printable(line); !strings.Contains(tail, panicLine) {
		tail = panicLine + "\n" + tail
	}
	return tail
}

// Ending returns the end of an error message that quotes a result of Console. It is empty if there is
// nothing to quote.
func Ending(console string) string {
	if console == "" {
		return ""
	}
	return "; its console ends with:\n" + console
}

// pciNoise is a line that every guest prints while it boots. Linux reports an error because the
// machine has no PCI, whatever the kernel's parameters are (pci_arch_init, arch/x86/pci/init.c). A
// reader of an error message could take the line for the cause.
const pciNoise = "PCI: Fatal: No config space access function found"

func withoutNoise(console []byte) []byte {
	var kept []byte
	for line := range bytes.Lines(console) {
		if !bytes.Contains(line, []byte(pciNoise)) {
			kept = append(kept, line...)
		}
	}
	return kept
}

// Lines returns the last n non-empty lines of the given output, without control characters.
func Lines(output []byte, n int) string {
	var lines []string
	for len(output) > 0 && len(lines) < n {
		var line []byte
		i := bytes.LastIndexByte(output, '\n')
		line, output = output[i+1:], output[:max(i, 0)]
		if s := printable(line); s != "" {
			lines = append([]string{s}, lines...)
		}
	}
	return strings.Join(lines, "\n")
}

// printable returns a line of a guest without characters that could harm a terminal.
func printable(line []byte) string {
	line = bytes.TrimSpace(line)
	if len(line) > maxLine {
		line = line[:maxLine]
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, strings.ToValidUTF8(string(line), "?"))
}
