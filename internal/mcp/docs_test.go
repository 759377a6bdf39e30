package mcp_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/forkd/forkd/internal/mcp"
)

// The lines before and after the table of tools in docs/mcp.md.
const (
	tableBegins = "<!-- tools -->\n"
	tableEnds   = "<!-- /tools -->"
)

// docs/mcp.md describes all tools, with the texts and arguments that models see. If
// FORKD_UPDATE_DOCS is set, the test writes the table to this file.
func TestDocumentedTools(t *testing.T) {
	const path = "../../docs/mcp.md"
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(p), tableBegins)
	have, after, ok2 := strings.Cut(rest, tableEnds)
	if !ok || !ok2 {
		t.Fatalf("%s has no table of tools", path)
	}
	want := toolTable()
	if have == want {
		return
	}
	if os.Getenv("FORKD_UPDATE_DOCS") == "" {
		t.Fatalf(
			"the table of tools in docs/mcp.md is out of date: run FORKD_UPDATE_DOCS=1 go test -run TestDocumentedTools ./internal/mcp; want\n%s",
			want,
		)
	}
	if err := os.WriteFile(path, []byte(before+tableBegins+want+tableEnds+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

func toolTable() string {
	var b strings.Builder
	b.WriteString("| tool | scope | what it does | arguments |\n|---|---|---|---|\n")
	for _, d := range mcp.New("").Describe() {
		var list []string
		for _, name := range slices.Sorted(maps.Keys(d.Input.Properties)) {
			list = append(list, argument(d.Input, name))
		}
		slices.SortStableFunc(list, func(a, b string) int { // required arguments come first
			return strings.Count(a, "`*") - strings.Count(b, "`*")
		})
		fmt.Fprintf(
			&b,
			"| `%s` | %s | %s | %s |\n",
			d.Name,
			d.Scope,
			strings.ReplaceAll(d.Text, "|", `\|`),
			strings.Join(list, ", "),
		)
	}
	return b.String()
}

// argument describes one argument and its default. Optional arguments are in italics.
func argument(s *jsonschema.Schema, name string) string {
	if slices.Contains(s.Required, name) {
		return "`" + name + "`"
	}
	text := name
	if d := s.Properties[name].Default; d != nil {
		text += "=" + strings.Trim(string(d), `"`)
	}
	return "*`" + text + "`*"
}

// The skill tells a model to use tools and resources. All of these exist.
func TestPublishedNames(t *testing.T) {
	var tools []string
	for _, d := range mcp.New("").Describe() {
		tools = append(tools, d.Name)
	}
	skill, err := os.ReadFile("../../skills/forkd/SKILL.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, m := range regexp.MustCompile("`([a-z]+_[a-z_]+)`").FindAllStringSubmatch(string(skill), -1) {
		if m[1] == "timeout_secs" { // timeout_secs is an argument, not a tool
			continue
		}
		if seen++; !slices.Contains(tools, m[1]) {
			t.Errorf("SKILL.md names %s, which is no tool", m[1])
		}
	}
	if seen < 10 {
		t.Errorf("found %d tools in SKILL.md: there are more", seen)
	}
	codes, err := os.ReadFile("../../docs/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	for code, help := range mcp.Helpful() {
		if !strings.Contains(string(codes), `id="`+code+`"`) {
			t.Errorf("there is help against %s, and docs/errors.md has no such code", code)
		}
		for _, name := range regexp.MustCompile(`[a-z]+_[a-z]+|\b(?:branch|tree)\b`).FindAllString(help, -1) {
			if !slices.Contains(tools, name) && !slices.Contains([]string{"timeout_secs", "new_context", "sandbox_id"}, name) {
				t.Errorf("the help against %s names %s, which is no tool", code, name)
			}
		}
	}
	p, err := os.ReadFile("../../server.json")
	if err != nil {
		t.Fatal(err)
	}
	var server struct{ Name, Description, Version string }
	if err := json.Unmarshal(p, &server); err != nil || server.Name != "io.github.forkd/forkd" ||
		len(server.Description) > 100 {
		t.Errorf("server.json: %+v, %v", server, err)
	}
	cli, err := os.ReadFile("../cli/cmd_version.go")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(cli), fmt.Sprintf("const version = %q", server.Version)) {
		t.Errorf("server.json has the version %s, and internal/cli another one", server.Version)
	}
}
