package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestAssetsAreBundled checks that the committed files of the page are made from its present
// sources.
func TestAssetsAreBundled(t *testing.T) {
	want, err := bundle("..")
	if err != nil {
		t.Fatal(err)
	}
	if len(want) < 6 {
		t.Fatalf("the page has %d files: there are more", len(want))
	}
	for name, content := range want {
		got, err := os.ReadFile(filepath.Join("../assets", name))
		if err != nil {
			t.Error(err)
		} else if !bytes.Equal(got, content) {
			t.Errorf("assets/%s is not made from the sources: run 'go generate ./internal/ui'", name)
		}
	}
	there, err := os.ReadDir("../assets")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range there {
		if want[entry.Name()] == nil {
			t.Errorf("assets/%s has no source", entry.Name())
		}
	}
}
