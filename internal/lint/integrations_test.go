package lint

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An integration is a row of the table in docs/integrations.md. Its numbers come from a run of its
// compat groups, as test/compat/record.py has recorded them.
type integration struct {
	tool  string // Markdown
	name  string // the tool's name in the results of its groups
	group string // group with real VMs; empty if the tool was never meant to run with them
	faked string // group with faked VMs
	how   string
	adds  string // what forkd adds
	note  string // mark of a footnote
}

// result is what a group has recorded about a tool.
type result struct {
	Version string
	Suite   string // the framework's own tests, with their version; empty for our tests
	Passed  int
	Total   int
	Failed  int // tests that failed unexpectedly
	NotRun  int `json:"not_run"`
	VMs     string
	Date    string
}

const (
	sameForAll = "your own host, and [branches](#what-forkd-adds)"
	images     = "containers that fork from a warm image; `docker commit` keeps memory"
	models     = "tools for models: fork, branch, roll back"
)

var integrations = []integration{
	{"[deepagents](#deepagents)", "deepagents", "adapters", "adapters@rig-all", "`forkd.integrations.deepagents`",
		"branch, rollback and fork of the machine", "¹"},
	{"deepagents 0.6", "deepagents", "adapters@deepagents-0.6", "adapters@rig-deepagents-0.6",
		"`forkd.integrations.deepagents`", "the same", ""},
	{"[Harbor](#harbor)", "harbor", "adapters", "adapters@rig-all", "`forkd.integrations.harbor`, by its import path",
		"a branch before and after every step, or before every command", ""},
	{"[Inspect AI](#inspect-ai)", "inspect_ai", "adapters", "adapters@rig-all",
		"`forkd.integrations.inspect_ai`, an entry point", "warm samples; branch, rollback and fork inside a sample", ""},
	{"[Jupyter](#jupyter)", "jupyter", "adapters", "adapters@rig", "`forkd.integrations.jupyter`, a kernel provisioner",
		"kernels start with their imports and variables; branches of a notebook's kernel", ""},
	{"[LangGraph](#langgraph)", "langgraph", "adapters", "adapters@rig-all",
		"`forkd.integrations.langgraph`, a checkpointer", "going back in the graph rolls the machine back", "²"},
	{"[mini-swe-agent](#mini-swe-agent)", "minisweagent", "adapters", "adapters@rig-all",
		"`forkd.integrations.minisweagent`, by its path", "a branch before every command; forks from any step", ""},
	{"[OpenAI Agents SDK](#openai-agents-sdk)", "openai_agents", "adapters", "adapters@rig",
		"`forkd.integrations.openai_agents`, a sandbox client",
		"a stopped session continues with its memory; branch, rollback and fork of a session", ""},
	{"[Pydantic AI](#pydantic-ai)", "pydantic_ai", "adapters", "adapters@rig-all",
		"`forkd.integrations.pydantic_ai`, a workspace", "branch, rollback and fork of the workspace", "³"},
	{"[smolagents](#smolagents)", "smolagents", "adapters", "adapters@rig",
		"`forkd.integrations.smolagents`, an executor",
		"a branch before every step; forks from any step, with the variables", ""},

	{"[LangGraph](../examples/langgraph-react/README.md)", "langgraph-react", "examples", "examples@rig",
		"Python SDK: an example", "three children diverge from the same reasoning", ""},
	{"[CrewAI](../examples/crewai-fanout/README.md)", "crewai-fanout", "examples@crewai", "examples@rig-crewai",
		"Python SDK: an example", "a crew for each child", ""},
	{"[AutoGen](../examples/autogen-branch/README.md)", "autogen-branch", "examples", "examples@rig",
		"Python SDK: an example", "a team branches with its machine", ""},
	{"[OpenAI Agents SDK](../examples/openai-agents/README.md)", "openai-agents", "examples", "examples@rig",
		"Python SDK: an example", "a handoff forks the machine for the next agent", ""},
	{"[Swarm](../examples/openai-swarm/README.md)", "openai-swarm", "examples@crewai", "examples@rig-crewai",
		"Python SDK: an example", "a handoff passes a machine on, as a context variable", ""},
	{"[MCP agent](../examples/mcp-agent/README.md)", "mcp-agent", "examples", "examples@rig",
		"MCP: an example", models, ""},

	{"`openai-agents`", "openai_agents", "e2b-tools", "e2b-tools@rig", "E2B: `E2BSandboxClient`", sameForAll, ""},
	{"`smolagents`", "smolagents", "e2b-tools", "e2b-tools@rig", "E2B: `executor_type=\"e2b\"`", sameForAll, ""},
	{"`langchain-e2b`", "langchain_e2b", "e2b-tools", "e2b-tools@rig", "E2B: `E2BSandbox`, with deepagents 0.6.12",
		sameForAll, ""},
	{"`deepagents-code`", "deepagents_code", "e2b-tools", "e2b-tools@rig", "E2B: `E2BProvider` of langchain-e2b",
		sameForAll, ""},
	{"`inspect-sandboxes`", "inspect_sandboxes", "e2b-tools", "e2b-tools@rig", "E2B: `sandbox=\"e2b\"`",
		sameForAll, "⁴"},
	{"`harbor`", "harbor", "e2b-tools", "e2b-tools@rig", "E2B: `harbor run -e e2b`, with the oracle agent",
		sameForAll, ""},
	{"`google-adk`", "google_adk", "e2b-tools", "e2b-tools@rig", "E2B: `E2BEnvironment`; `E2BPlugin` of e2b-adk",
		sameForAll, ""},
	{"`crewai-tools`", "crewai_tools", "e2b-tools", "e2b-tools@rig",
		"E2B: `E2BExecTool`, `E2BFileTool`, `E2BPythonTool`", sameForAll, "⁵"},
	{"`agno`", "agno", "e2b-tools", "e2b-tools@rig", "E2B: `E2BTools`", sameForAll, "⁶"},
	{"`verifiers`", "verifiers", "e2b-tools", "e2b-tools@rig", "E2B: `E2BRuntime`, with a template made before",
		sameForAll, ""},
	{"`@openai/agents-extensions`", "openai-agents-extensions", "e2b-tools", "e2b-tools@rig",
		"E2B: `E2BSandboxClient`",
		sameForAll, ""},
	{"`@mastra/e2b`", "mastra", "e2b-tools", "e2b-tools@rig",
		"E2B: `E2BSandbox`, with a template named", sameForAll, "⁷"},
	{"`@computesdk/e2b`", "computesdk", "e2b-tools", "e2b-tools@rig", "E2B: the provider `e2b`", sameForAll, "⁸"},

	{"`docker` of Debian 12", "docker", "docker", "docker@rig", "Docker: the command line", images, ""},
	{"`docker` of PyPI", "docker-py", "docker", "docker@rig", "Docker: docker-py", images, ""},
	{"`testcontainers`", "testcontainers", "docker", "docker@rig", "Docker: `TESTCONTAINERS_RYUK_DISABLED=true`",
		images, ""},
	{"`mini-swe-agent`", "mini-swe-agent", "docker", "docker@rig",
		"Docker: `environment_class: docker`", images, ""},
	{"`swebench`", "SWE-bench", "docker", "docker@rig", "Docker: SWE-bench's harness", images, "⁹"},

	{"[AI SDK](#ai-sdk-and-bash-tool)", "ai", "adapters", "adapters@rig", "`forkd/ai`: `experimental_sandbox`",
		"a branch before every step; forks from any step", ""},
	{"[bash-tool](#ai-sdk-and-bash-tool)", "bash-tool", "adapters", "adapters@rig", "`forkd/bash-tool`",
		"a sandbox whose changes you can branch and roll back", ""},

	{"`mcp` of PyPI", "mcp", "", "mcp", "[MCP](mcp.md), stdio and HTTP", models, ""},
	{"`mcp` of PyPI, version 1", "mcp", "", "mcp@1.30", "MCP, stdio and HTTP", models, ""},
	{"`@modelcontextprotocol/client` and `sdk`", "clients", "", "mcp", "MCP, stdio and HTTP", models, ""},
	{"`@modelcontextprotocol/inspector`", "inspector", "", "mcp", "MCP, stdio and HTTP", models, ""},
	{"revision 2025-11-25 of MCP", "2025-11-25", "", "mcp", "MCP, HTTP", models, "¹⁰"},
	{"revision 2026-07-28 of MCP", "2026-07-28", "", "mcp", "MCP, HTTP", models, "¹⁰"},
}

const tableBegin, tableEnd = "<!-- table: test/compat/record.py writes it -->\n", "<!-- end of table -->\n"

// The table says that a tool works only if a run has shown it: all numbers and versions come from
// test/compat/results. After runs, test/compat/record.py updates the table and the results.
func TestIntegrationsTable(t *testing.T) {
	results := readResults(t)
	want := integrationsTable(results)
	path := filepath.Join(root, "docs", "integrations.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(text), tableBegin)
	got, after, ends := strings.Cut(rest, tableEnd)
	if !begins || !ends {
		t.Fatalf("%s has no table between %q and %q", path, tableBegin, tableEnd)
	}
	if *update {
		if err := os.WriteFile(path, []byte(before+tableBegin+want+tableEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if got != want {
		t.Errorf("the table in %s is not that of test/compat/results: run test/compat/record.py", path)
	}
	for group, tools := range results {
		for tool, r := range tools {
			if !inTable(group, tool) {
				t.Errorf("results/%s.json has the tool %s, which no row of the table is for", group, tool)
			}
			if (r.VMs == "faked") != (strings.HasPrefix(group, "mcp") || strings.Contains(group, "@rig")) {
				t.Errorf("results/%s.json: the VMs of %s were %q", group, tool, r.VMs)
			}
		}
	}
}

func inTable(group, tool string) bool {
	for _, row := range integrations {
		if row.name == tool && (row.group == group || row.faked == group) {
			return true
		}
	}
	return false
}

// readResults returns the recorded results by group and tool.
func readResults(t *testing.T) map[string]map[string]result {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "test", "compat", "results", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]map[string]result{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		tools := map[string]result{}
		if err := json.Unmarshal(text, &tools); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for tool, r := range tools {
			if r.Version == "" || r.VMs == "" || r.Date == "" || r.Passed > r.Total || r.Total == 0 {
				t.Errorf("%s: %s: %+v is not the result of a run", file, tool, r)
			}
		}
		all[strings.TrimSuffix(filepath.Base(file), ".json")] = tools
	}
	return all
}

func integrationsTable(results map[string]map[string]result) string {
	var out strings.Builder
	out.WriteString("| tool | version | how | what forkd adds | tests | passed in VMs | passed, VMs faked |\n" +
		"|---|---|---|---|---|---|---|\n")
	for _, row := range integrations {
		real, faked := results[row.group][row.name], results[row.faked][row.name]
		shown := real
		if shown.Total == 0 {
			shown = faked
		}
		tests := shown.Suite
		if shown.Total == 0 {
			tests = "not run"
		} else if tests == "" {
			tests = "ours"
		}
		fmt.Fprintf(&out, "| %s | %s | %s | %s | %s |%s|%s|\n", row.tool, shown.Version, row.how, row.adds,
			strings.TrimSpace(tests+" "+row.note), cell(real, shown), cell(faked, shown))
	}
	return out.String()
}

// cell returns the numbers of a run, or a space if there was no run.
func cell(r, shown result) string {
	if r.Total == 0 {
		return " "
	}
	text := fmt.Sprintf(" %d of %d", r.Passed, r.Total)
	if r.Failed > 0 {
		text += fmt.Sprintf(", %d failed unexpectedly", r.Failed)
	}
	if r.NotRun > 0 {
		text += fmt.Sprintf(", %d not run", r.NotRun)
	}
	if r.Version != shown.Version {
		text += " with " + r.Version
	}
	return text + " "
}

// The version and the numbers in a row come only from runs, and each column has the numbers of its
// own group.
func TestIntegrationsRow(t *testing.T) {
	row := integrations[0]
	line := func(results map[string]map[string]result) string {
		return strings.Split(integrationsTable(results), "\n")[2] // after the head
	}
	start := func(version, tests string) string {
		return fmt.Sprintf("| %s | %s | %s | %s | %s |", row.tool, version, row.how, row.adds, tests+" "+row.note)
	}
	real := result{Version: "2", Suite: "suite 1", Passed: 5, Total: 9, Failed: 1, NotRun: 2, VMs: "host"}
	faked := result{Version: "1", Suite: "suite 1", Passed: 8, Total: 9, VMs: "faked"}
	for _, test := range []struct {
		results map[string]map[string]result
		want    string
	}{
		{nil, start("", "not run") + " | |"},
		{map[string]map[string]result{row.group: {"another": real}}, start("", "not run") + " | |"},
		{map[string]map[string]result{row.faked: {row.name: faked}}, start("1", "suite 1") + " | 8 of 9 |"},
		{map[string]map[string]result{row.group: {row.name: real}, row.faked: {row.name: faked}},
			start("2", "suite 1") + " 5 of 9, 1 failed unexpectedly, 2 not run | 8 of 9 with 1 |"},
	} {
		if got := line(test.results); got != test.want {
			t.Errorf("got  %s\nwant %s", got, test.want)
		}
	}
}
