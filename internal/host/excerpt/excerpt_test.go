package excerpt

import (
	"strings"
	"testing"
)

func TestConsoleIsSafeAndKeepsThePanic(t *testing.T) {
	console := []byte("Kernel panic - not syncing: \x1b[31mx\n" + strings.Repeat("noise\n", 50) + "\x00last" +
		strings.Repeat("y", 500))
	tail := Console(console, 3)
	if !strings.HasPrefix(tail, "Kernel panic") || strings.ContainsAny(tail, "\x1b\x00") || len(tail) > 1000 {
		t.Errorf("tail %q", tail)
	}
	noise := []byte("[    0.1] PCI: Fatal: No config space access function found\r\n")
	if got := Console(noise, 3); got != "" {
		t.Errorf("what every guest prints is quoted: %q", got)
	}
	if got := Console(append(noise, "EXT4-fs error"...), 3); got != "EXT4-fs error" {
		t.Errorf("beside what every guest prints: %q", got)
	}
	if got := Console(nil, 3); got != "" {
		t.Errorf("empty console: %q", got)
	}
}
