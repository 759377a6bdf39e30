package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
)

// The completion scripts pass words of the command line to eval. So a name from a daemon is not
// offered if it has characters that are special for a shell. A name is also not offered if it looks
// like a flag, a description or a directive of the script.
func TestCompletionOffersPlainNamesOnly(t *testing.T) {
	hostile := []string{"$(touch pwned)", "x;id", "x`id`", "x$(id)", "x y", "x\ty", "x\n:4", "x\n", "-rf", ":4", "~x",
		"x'y", `x"y`, `x\y`, "x|y", "x&y", "x>y", "x*", "x{a,b}", "x\u00a0y", "x\x1b[2J", "_activeHelp_ x", ""}
	good := []string{"base", "registry:5000/a_b/c:1.2-3", "me@host"}
	names := append(slices.Clone(hostile), good...)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var answer any
		switch r.URL.Path {
		case "/v1/snapshots":
			var list []client.Snapshot
			for _, n := range names {
				list = append(list, client.Snapshot{Tag: n, Status: "ready"})
			}
			answer = list
		case "/v1/sandboxes":
			var list []client.Sandbox
			for _, n := range names {
				list = append(list, client.Sandbox{ID: n, Workspace: n})
			}
			answer = list
		case "/v1/workspaces":
			var list []client.Workspace
			for _, n := range names {
				list = append(list, client.Workspace{Name: n})
			}
			answer = list
		default:
			http.Error(w, `{"error":"$(id)\n$(id)\t:0"}`, http.StatusNotFound)
			return
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer srv.Close()
	t.Setenv(urlEnv, srv.URL)
	for _, line := range []string{"rmi", "fork", "history", "kill", "exec", "cp", "inspect", "tree", "attach",
		"attach sb-1", "undo", "workspace delete", "run", "branch",
		"hook claude-code --workspace", "rollback sb-1 --to", "label", "url",
		"snapshot diff"} {
		var out, errs strings.Builder
		args := append([]string{"__complete"}, append(strings.Fields(line), "")...)
		if code := Main(args, Stdio{In: strings.NewReader(""), Out: &out, Err: &errs}); code != 0 {
			t.Errorf("%s: %d, %s", line, code, errs.String())
		}
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		for i, l := range lines[:len(lines)-1] {
			word, _, _ := strings.Cut(l, "\t")
			if slices.Contains(hostile, word) || slices.Contains(hostile, strings.TrimSuffix(word, ":")) ||
				strings.ContainsAny(word, "$`;|&<>(){}*?[]!~'\"\\ \x1b") {
				t.Errorf("%s: line %d is %q", line, i, l)
			}
		}
		if directive := lines[len(lines)-1]; len(directive) != 2 || directive[0] != ':' {
			t.Errorf("%s: directive %q", line, directive)
		}
		if line == "rmi" && !slices.Equal(lines[:len(lines)-1], good) {
			t.Errorf("%s: %q", line, lines)
		}
		if strings.Contains(errs.String(), "$(") {
			t.Errorf("%s: standard error has %q", line, errs.String())
		}
	}
}
