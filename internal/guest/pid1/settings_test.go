package pid1

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/guest/kmsg"
)

func TestSettingsThatAKernelLacksAreLeftOut(t *testing.T) {
	dir := t.TempDir()
	known := filepath.Join(dir, "known")
	if err := os.WriteFile(known, []byte("20\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	applySettings(map[string]string{known: "0", filepath.Join(dir, "unknown"): "1"}, kmsg.NewPlain(&log))
	if got, err := os.ReadFile(known); err != nil || string(got) != "0" || log.Len() > 0 {
		t.Errorf("%q, %v, log %q", got, err, log.String())
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v: an unknown setting was made", entries, err)
	}
	applySettings(map[string]string{dir: "0"}, kmsg.NewPlain(&log))
	if !strings.Contains(log.String(), dir) {
		t.Errorf("a refused setting is not reported: %q", log.String())
	}
}
