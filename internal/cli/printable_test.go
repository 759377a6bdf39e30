package cli

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

// If an error contains text of a guest, that text does not affect the terminal.
func TestErrorsAreForReading(t *testing.T) {
	got := printable(errors.New("guest: \x1b]52;c;ZXZpbA==\a\x1b[2Jdone\r\u202eñ\n\tnext"))
	const want = "guest: \ufffd]52;c;ZXZpbA==\ufffd\ufffd[2Jdone\ufffd\ufffdñ\n\tnext"
	if got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// If the output of a command contains text of a guest, that text does not affect the terminal and
// cannot begin a new line.
func TestWordsOfGuestsAreForReading(t *testing.T) {
	const hostile = "\x1b]52;c;ZXZpbA==\aevil\r\nforkd: all is well"
	var out strings.Builder
	cmd := &cobra.Command{}
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	for name, print := range map[string]func(){
		"ping, kernel":       func() { printPong(&out, client.Pong{Kernel: hostile}) },
		"ping, interpreters": func() { printPong(&out, client.Pong{Warm: []string{"python", hostile}}) },
		"build, errors": func() {
			printBuilt(cmd, built{Baked: client.Baked{GuestErrors: []string{"an error", hostile}}})
		},
		"unique": func() {
			printRepeats(cmd, client.Sandbox{Unique: &client.Unique{Repeats: []client.Generator{{Program: hostile}}}})
		},
	} {
		out.Reset()
		print()
		if text := out.String(); strings.ContainsAny(text, "\x1b\a\r") || !strings.Contains(text, "evil") ||
			strings.Contains(text, "\nforkd: all is well") {
			t.Errorf("%s: %q", name, text)
		}
	}
	for name, print := range map[string]func(){ // text with more than one line
		"eval, error": func() { printEval(&out, &out, client.EvalResult{Error: "a\tb\n" + hostile}) },
	} {
		out.Reset()
		print()
		if text := out.String(); strings.ContainsAny(text, "\x1b\a\r") || !strings.Contains(text, "a\tb\n\ufffd]52;") {
			t.Errorf("%s: %q", name, text)
		}
	}
	out.Reset()
	printPong(&out, client.Pong{Kernel: "6.12.1", Warm: []string{"python", "node"}})
	if text := out.String(); text != "pong: kernel 6.12.1, warm interpreters [python node]\n" {
		t.Errorf("%q", text)
	}
}

// hostileWords is a text that would control a terminal and begin a new line.
const hostileWords = "evil\x1b]52;c;ZXZpbA==\a\x1b[2J\u009b2J\u202e\U000e0001\x7f\r\nforkd: all is well"

// fill sets every string in a value to hostileWords, and makes lists of one element.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(hostileWords)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() && v.Type().String() != "time.Time" {
				fill(v.Field(i))
			}
		}
	}
}

// hostile returns a value in which every string is hostileWords.
func hostile[T any]() (v T) {
	fill(reflect.ValueOf(&v).Elem())
	return v
}

// hostileDaemon starts a daemon that answers with hostileWords.
func hostileDaemon(t *testing.T) {
	t.Helper()
	answers := map[string]any{
		"GET /version":                         hostile[client.Version](),
		"GET /v1/snapshots":                    hostile[[]client.Snapshot](),
		"POST /v1/snapshots/base/verify":       nil,
		"GET /v1/sandboxes":                    append(hostile[[]client.Sandbox](), client.Sandbox{ID: "sb-1"}),
		"GET /v1/sandboxes/sb-1":               hostile[client.Sandbox](),
		"PATCH /v1/sandboxes/sb-1/labels":      hostile[client.Sandbox](),
		"PUT /v1/sandboxes/sb-1/ttl":           hostile[client.Sandbox](),
		"POST /v1/sandboxes/sb-1/branch":       hostile[client.Snapshot](),
		"POST /v1/sandboxes/sb-1/rollback":     hostile[client.RolledBack](),
		"GET /v1/sandboxes/sb-1/limits":        hostile[client.SandboxLimits](),
		"GET /v1/sandboxes/sb-1/processes":     hostile[[]client.ProcessInfo](),
		"GET /v1/sandboxes/sb-1/stats":         hostile[client.Stats](),
		"GET /v1/sandboxes/sb-1/metrics":       hostile[client.Metrics](),
		"POST /v1/sandboxes/sb-1/ports/80/url": hostile[client.PortURL](),
		"GET /v1/sandboxes/sb-1/network":       hostile[client.SandboxNetwork](),
		"POST /v1/sandboxes/sb-1/ping":         hostile[client.Pong](),
		"POST /v1/forks":                       hostile[client.Forked](),
		"POST /v1/diff":                        hostile[client.Diff](),
		"GET /v1/workspaces":                   hostile[[]client.Workspace](),
		"POST /v1/workspaces":                  hostile[client.Workspace](),
		"GET /v1/workspaces/desk":              hostile[client.Workspace](),
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.Method+" "+r.URL.Path]
		switch {
		case ok:
		case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/info"): // for any snapshot
			answer = hostile[client.SnapshotDetail]()
		case r.Method == http.MethodDelete: // for any object
			answer = nil
		default:
			w.WriteHeader(http.StatusTeapot)
			answer = map[string]string{"error": hostileWords, "code": hostileWords, "fix": hostileWords}
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(srv.Close)
	t.Setenv(urlEnv, srv.URL)
}

// No command passes text of a daemon to the terminal unchanged. JSON output escapes the text. A
// JSON decoder returns the original text.
func TestWordsOfDaemonsAreForReading(t *testing.T) {
	hostileDaemon(t)
	for _, line := range []string{"version", "images", "images -q", "history base", "snapshot-info base", "ls", "ls -q",
		"ls -o wide", "ps sb-1", "tree", "fork base", "fork base -n 2", "branch sb-1 mine", "rollback sb-1 --to base",
		"label sb-1", "label sb-1 a=b", "url sb-1 80", "exec sb-1 -- ls", "run base -- ls",
		"run -d base -- ls", "prune --dry-run",
		"prune --force", "df", "info", "ping sb-1", "net sb-1", "limit sb-1", "workspace list",
		"workspace create desk --snapshot base", "inspect sb-1", "inspect base", "kill sb-1",
		"top --once", "stats sb-1", "stats sb-1 --since 1h", "ttl sb-1", "rmi base", "rmi nothing",
		"verify base", "undo -w desk", "turns -w desk", "inspect -f {{.id}} sb-1", "diff sb-1",
		"diff base sb-1 /srv", "diff sb-1 --stat", "diff sb-1 --name-only", "diff sb-1 --name-status"} {
		for _, format := range []string{"", "-o json"} {
			command, program, _ := strings.Cut(line, " -- ")
			args := append(strings.Fields(command), strings.Fields(format)...)
			if program != "" {
				args = append(args, "--", program)
			}
			var out, errs strings.Builder
			if Main(args, Stdio{In: strings.NewReader(""), Out: &out, Err: &errs}) == exitUsage {
				t.Errorf("%s: %s", args, errs.String())
			}
			const controls = "\x1b\a\r\u009b\u202e\U000e0001\x7f"
			if strings.ContainsAny(out.String()+errs.String(), controls) ||
				strings.Contains(out.String(), "\nforkd: all is well") {
				t.Errorf("%s: %q, %q", args, out.String(), errs.String())
			}
		}
	}
	var out strings.Builder
	if err := writeJSON(&out, hostileWords); err != nil {
		t.Fatal(err)
	}
	var back string
	if err := json.Unmarshal([]byte(out.String()), &back); err != nil || back != hostileWords {
		t.Errorf("JSON has %q, %v", back, err)
	}
}

// The waiting line cleans the name of a stage, because this name is text of the daemon.
func TestStagesAreForReading(t *testing.T) {
	var out strings.Builder
	s := &status{w: &out}
	s.step(hostileWords, "")
	if text := out.String(); strings.ContainsAny(text, "\x1b\a\r") || strings.Count(text, "\n") != 1 {
		t.Errorf("%q", text)
	}
}

// Only the functions of print.go and table.go are allowed to print text. They clean it; package fmt
// does not.
func TestTextIsPrintedInOnePlace(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if name == "print.go" || strings.HasSuffix(name, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if of, ok := call.X.(*ast.Ident); ok && of.Name == "fmt" &&
				(strings.HasPrefix(call.Sel.Name, "Fprint") || strings.HasPrefix(call.Sel.Name, "Print")) {
				t.Errorf("%s: fmt.%s: use printf or printLine, which clean the words of daemons and guests",
					set.Position(call.Pos()), call.Sel.Name)
			}
			return true
		})
	}
}

// A number keeps its type, which its formatting verb needs. Only multiline arguments and errors
// keep their line ends.
func TestArgumentsAreCleaned(t *testing.T) {
	type name string
	const bad = "a\x1b\nb"
	for want, print := range map[string]func(io.Writer){
		"a\ufffd b|":             func(w io.Writer) { printf(w, "%s|", bad) },
		"a\ufffd b||":            func(w io.Writer) { printf(w, "%s||", name(bad)) },
		"a\ufffd\nb|":            func(w io.Writer) { printf(w, "%s|", multiline(bad)) },
		"a\ufffd\nb||":           func(w io.Writer) { printf(w, "%v||", errors.New(bad)) },
		"[a\ufffd b]|":           func(w io.Writer) { printf(w, "%v|", []string{bad}) },
		"  7 1.5 true a\x1b\nb|": func(w io.Writer) { printf(w, "%3d %.1f %t %s|", 7, 1.5, true, styled(bad)) },
		"a\ufffd b <nil>\n":      func(w io.Writer) { printLine(w, bad, nil) },
	} {
		var out strings.Builder
		print(&out)
		if out.String() != want {
			t.Errorf("%q, want %q", out.String(), want)
		}
	}
}
