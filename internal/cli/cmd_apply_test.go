package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
)

// applying starts a daemon that answers POST …/apply. It returns a function that runs a command line, and pointers
// to the path and the body of the latest request.
func applying(t *testing.T, status int, answer any) (run func(line string) (code int, out, errs string), path *string,
	last *client.ApplyRequest) {
	t.Helper()
	path, last = new(string), &client.ApplyRequest{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/apply") {
			_ = json.NewEncoder(w).Encode([]client.Sandbox{{ID: "sb-abc", Workspace: "desk"}, {ID: "sb-def"}})
			return
		}
		*path, *last = r.URL.Path, client.ApplyRequest{}
		_ = json.NewDecoder(r.Body).Decode(last)
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(srv.Close)
	t.Setenv(urlEnv, srv.URL)
	return func(line string) (int, string, string) {
		var out, errs strings.Builder
		code := Main(strings.Fields(line), Stdio{In: strings.NewReader(""), Out: &out, Err: &errs})
		return code, out.String(), errs.String()
	}, path, last
}

func TestApplyRequests(t *testing.T) {
	run, path, last := applying(t, http.StatusOK, client.Applied{Applied: true, Added: 1, Conflicts: 1, Omitted: true,
		Files: []client.ApplyFile{{Path: "/a\n", Change: "added"}, {Path: "/b", Change: "changed", Conflict: true,
			From: "changed", Onto: "deleted", Kept: true}}})
	for line, want := range map[string]client.ApplyRequest{
		"apply sb-def --onto desk":                       {From: "sb-def", MaxFiles: new(1000)},
		"apply base --onto sb-a --dry-run --max-files 5": {From: "base", DryRun: true, MaxFiles: new(5)},
		"apply sb-d --onto sb-a --base b --prefer onto --paths /a,/b --paths /c": {From: "sb-def", Base: "b", Prefer: "onto",
			Paths: []string{"/a", "/b", "/c"}, MaxFiles: new(1000)},
	} {
		code, out, errs := run(line)
		if code != exitOK || *path != "/v1/sandboxes/sb-abc/apply" || !reflect.DeepEqual(*last, want) {
			t.Errorf("%s: %d, %s, %+v, %s", line, code, *path, *last, errs)
		}
		if text := "A\t\"/a\\n\"\nC\t/b: changed in FROM, deleted in ID; kept\napplied: 1 added, 0 changed, 0 deleted; 1 conflict\n"; out != text {
			t.Errorf("%s: %q, want %q", line, out, text)
		}
		if !strings.Contains(errs, "--max-files") {
			t.Errorf("%s: %q", line, errs)
		}
	}
	for _, line := range []string{"apply", "apply a", "apply a b --onto c", "apply a --onto b --prefer ours"} {
		if code, _, _ := run(line); code != exitUsage {
			t.Errorf("%s: exit code %d", line, code)
		}
	}
}

// The conflicts of a refused request are listed on stderr.
func TestApplyConflicts(t *testing.T) {
	run, _, _ := applying(t, http.StatusConflict, map[string]any{"error": "both have changed 1 files",
		"code": "apply_conflict", "conflicts": []client.ApplyFile{{Path: "/b\x1b[2J", Change: "deleted", Conflict: true,
			From: "deleted", Onto: "changed"}}})
	code, out, errs := run("apply sb-def --onto sb-abc")
	if code != exitError || out != "" || !strings.Contains(errs, "C\t\"/b\\x1b[2J\": deleted in FROM, changed in ID") ||
		!strings.Contains(errs, "both have changed") {
		t.Errorf("%d, %q, %q", code, out, errs)
	}
}
