package client_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// The program in docs/sdk.md runs and prints the output that the document shows.
func TestStartOfTheDocument(t *testing.T) {
	document, err := os.ReadFile("../docs/sdk.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("(?s)```go\n(package main\n.*?)```\n\n```\n(.*?)```\n").FindSubmatch(document)
	if m == nil {
		t.Fatal("docs/sdk.md has no program with its output")
	}
	program := filepath.Join(t.TempDir(), "main.go")
	text := bytes.ReplaceAll(m[1], []byte(`"python-numpy"`), []byte(`"`+os.Getenv(snapshotEnv)+`"`))
	if err := os.WriteFile(program, text, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "run", program) // in this directory, so that it uses this module
	cmd.Env = append(os.Environ(), "FORKD_URL="+os.Getenv(urlEnv), "FORKD_TOKEN="+os.Getenv(tokenEnv))
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Equal(out, m[2]) {
		t.Errorf("%v: it prints\n%s\nand not\n%s", err, out, m[2])
	}
}
