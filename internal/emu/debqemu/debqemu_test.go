package debqemu

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// qemu makes a program that prints the given QEMU version.
func qemu(t *testing.T, dir, version string) string {
	t.Helper()
	path := filepath.Join(dir, Program)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\necho 'QEMU emulator version %s (Debian 1:%[1]s+ds-2)'\n", version)
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestChoose(t *testing.T) {
	host, cache := t.TempDir(), t.TempDir()
	t.Setenv("PATH", host) // without apt-get, nothing can be fetched
	var said []string
	choose := func() string {
		said = nil
		return Choose(t.Context(), cache, func(s string) { said = append(said, s) })
	}
	if got := choose(); got != Program || len(said) > 0 {
		t.Errorf("without QEMU: %s, %q", got, said)
	}
	for _, v := range []string{"10.0", "10.0.2", "11.1.0"} {
		qemu(t, host, v)
		if got := choose(); got != Program || len(said) > 0 {
			t.Errorf("with QEMU %s: %s, %q", v, got, said)
		}
	}
	qemu(t, host, "9.2.4")
	reason := ""
	for _, lines := range []int{2, 1} { // the second call reports the failure of the first call
		got := choose()
		if got != Program || len(said) != lines || !strings.Contains(said[lines-1], "going on with QEMU 9.2.4") ||
			reason != "" && said[0] != reason {
			t.Errorf("with an old QEMU and no way to get another: %s, %q", got, said)
		}
		reason = said[lines-1]
	}
	if left, err := os.ReadDir(cache); err != nil || len(left) != 1 || left[0].Name() != failureFile {
		t.Errorf("a failed fetch left %v, %v", left, err)
	}
	qemu(t, filepath.Join(cache, "9.10.0"), "9.10.0") // versions must not be compared as text
	newest := qemu(t, filepath.Join(cache, "10.0.2"), "10.0.2")
	if got := choose(); got != newest || len(said) > 0 {
		t.Errorf("with one in the cache: %s, %q", got, said)
	}
}

func TestMend(t *testing.T) {
	path := filepath.Join(t.TempDir(), Program)
	around := []byte("around")
	for name, c := range map[string]struct{ have, want []byte }{
		"known build":  {slices.Concat(around, injecting, around), slices.Concat(around, mended, around)},
		"other build":  {around, around},
		"what is this": {slices.Concat(injecting, injecting), slices.Concat(injecting, injecting)},
	} {
		if err := os.WriteFile(path, c.have, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := mend(path); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, c.want) {
			t.Errorf("%s: %x, %v", name, got, err)
		}
	}
	if len(store) != len(noop) || bytes.Count(injecting, store) != 1 {
		t.Error("the length of the program changes, or another instruction")
	}
}
