package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/apirig"
)

// TestView opens the view like a browser. The daemon requires a token.
func TestView(t *testing.T) {
	rig := apirig.Start(t, apirig.Options{Agent: agentHere})
	t.Setenv(urlEnv, rig.URL)
	t.Setenv(tokenEnv, apirig.Token)
	in, out := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		ended <- Main([]string{"ui", "--no-open", "-o", "json"}, Stdio{Out: out, Err: io.Discard})
	}()
	var told struct{ URL string }
	if err := json.NewDecoder(bufio.NewReader(in)).Decode(&told); err != nil {
		t.Fatal(err)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := http.Client{Jar: jar}
	resp, err := browser.Get(told.URL)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	_, page, ok := strings.Cut(resp.Header.Get("Refresh"), "url=")
	if !ok {
		t.Fatalf("%s %v", resp.Status, resp.Header)
	}
	base, _, _ := strings.Cut(told.URL, "/?")
	for path, want := range map[string]string{"": "<title>forkd</title>", "v1/snapshots": "[]",
		"version": `"scope":"admin"`} {
		resp, err := browser.Get(base + page + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != 200 || !bytes.Contains(body, []byte(want)) ||
			bytes.Contains(body, []byte(apirig.Token)) {
			t.Errorf("%q: %s %v\n%s", path, resp.Status, err, body)
		}
	}
	if err := unix.Kill(os.Getpid(), unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := <-ended; code != exitInterrupted {
		t.Errorf("exit code %d after a signal", code)
	}
}

func TestViewListensOnLoopbackOnly(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", ":0", "192.0.2.1:80", "127.0.0.1"} {
		var said bytes.Buffer
		if code := Main([]string{"ui", "--listen", address}, Stdio{Out: &said, Err: &said}); code != exitUsage ||
			!strings.Contains(said.String(), "loopback") {
			t.Errorf("--listen %s: exit code %d, %s", address, code, said.String())
		}
	}
}

// TestCallsOfTheViewExist checks that the commands and calls that the page shows for its actions
// exist.
func TestCallsOfTheViewExist(t *testing.T) {
	text, err := os.ReadFile("../ui/page/calls.json")
	if err != nil {
		t.Fatal(err)
	}
	var calls map[string]map[string]string
	if err := json.Unmarshal(text, &calls); err != nil {
		t.Fatal(err)
	}
	python, typescript := sources(t, "../../sdk/python/src/forkd/_sync/*.py"), sources(t, "../../sdk/typescript/src/*.ts")
	method := regexp.MustCompile(`\.(\w+)\(`)
	root := newRoot(Stdio{})
	for name, call := range calls {
		if wrong := misses(root, strings.Fields(strings.TrimPrefix(call["cli"], "forkd "))); wrong != "" {
			t.Errorf("%s: %s: there is no %s", name, call["cli"], wrong)
		}
		for _, m := range method.FindAllStringSubmatch(call["python"], -1) {
			if !strings.Contains(python, "def "+m[1]+"(") {
				t.Errorf("%s: the SDK for Python has no %s", name, m[1])
			}
		}
		for _, m := range method.FindAllStringSubmatch(call["typescript"], -1) {
			if !regexp.MustCompile(`(?m)^  (async )?` + m[1] + `\(`).MatchString(typescript) {
				t.Errorf("%s: the SDK for TypeScript has no %s", name, m[1])
			}
		}
	}
	if len(calls) < 15 {
		t.Errorf("found %d calls: there are more", len(calls))
	}
}

// sources returns the text of all files that match a pattern.
func sources(t *testing.T, pattern string) string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %v, %v", pattern, files, err)
	}
	var all strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}
