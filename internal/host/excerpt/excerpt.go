// Package excerpt quotes a guest's output, its console or that of a command, in an error message:
// the lines that help most, without control sequences for a terminal.
//
// It reads no files and decides nothing from the text.
package excerpt

import (
	"bytes"
	"strings"
)

// maxLine bounds a quoted line, in bytes, because the guest chooses its length.
const maxLine = 200

// Console returns the most helpful lines of a console for an error message: the kernel's panic
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

// pciNoise is printed by every guest while it boots. The machine has no PCI, which Linux reports as
// an error whatever its parameters say (pci_arch_init, arch/x86/pci/init.c). A reader would mistake
// it for the cause of a failure.
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

// Lines returns the last n non-empty lines of output, without control characters.
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

// printable makes a line of a guest safe to print.
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
