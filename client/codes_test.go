package client

import (
	"bytes"
	"flag"
	"fmt"
	"go/format"
	"os"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write codes.go from docs/errors.md")

// codeRow finds a row of the table of codes.
var codeRow = regexp.MustCompile("(?m)^\\| <a id=\"[a-z0-9_]+\"></a>`([a-z0-9_]+)` \\| (\\d+) \\|[^|]*\\| ([^|]+) \\|")

// Every code of docs/errors.md has a sentinel, and every sentinel has a code in this document.
func TestCodesAreThoseOfTheDocument(t *testing.T) {
	document, err := os.ReadFile("../docs/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	want := codesFile(t, document)
	if *update {
		if err := os.WriteFile("codes.go", want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile("codes.go")
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("codes.go is not as docs/errors.md has it (%v): go test ./client -run TestCodes -update", err)
	}
}

func codesFile(t *testing.T, document []byte) []byte {
	t.Helper()
	rows := codeRow.FindAllSubmatch(document, -1)
	if len(rows) < 30 {
		t.Fatalf("docs/errors.md has %d codes: has its table another form?", len(rows))
	}
	var b strings.Builder
	b.WriteString("package client\n\n// Code generated from docs/errors.md by codes_test.go. DO NOT EDIT.\n\n" +
		"// The codes of errors, for errors.Is. docs/errors.md says what helps.\nconst (\n")
	for _, row := range rows {
		fmt.Fprintf(&b, "%s ErrorCode = %q // %s: %s\n", sentinelName(string(row[1])), row[1], row[2], row[3])
	}
	b.WriteString(")\n")
	file, err := format.Source([]byte(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// sentinelName returns the name of the constant for a code.
func sentinelName(code string) string {
	name := "Err"
	for part := range strings.SplitSeq(code, "_") {
		if part == "vm" || part == "kvm" || part == "vcpus" {
			name += map[string]string{"vm": "VM", "kvm": "KVM", "vcpus": "VCPUs"}[part]
			continue
		}
		name += strings.ToUpper(part[:1]) + part[1:]
	}
	return name
}
