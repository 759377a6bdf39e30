package mcp_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/forkd/forkd/internal/mcp"
)

// A command that continues in the background can be found by its process id. All of its output is
// kept.
func TestCommandsThatGoOn(t *testing.T) {
	c := connect(t, start(t).Client, mcp.Run)
	id := c.spawn()
	begin := func(command string) (pid uint32, stdout string) {
		var s struct {
			PID        uint32
			StdoutPath string `json:"stdout_path"`
		}
		c.call("start_command", args{"sandbox_id": id, "command": command}, &s)
		t.Cleanup(func() { os.RemoveAll(filepath.Dir(s.StdoutPath)) })
		return s.PID, s.StdoutPath
	}
	type waited struct {
		Running        bool
		ExitCode       *int `json:"exit_code"`
		Stdout, Stderr string
		StdoutBytes    int64 `json:"stdout_bytes"`
		StdoutOmitted  int64 `json:"stdout_omitted_bytes"`
	}
	pid, path := begin("echo begun; sleep 0.5; echo no >&2; seq 10000; exit 7")
	var w waited
	if c.call("wait_command", args{"sandbox_id": id, "pid": pid, "timeout_secs": 0}, &w); !w.Running || w.ExitCode != nil {
		t.Errorf("at once: %+v", w)
	}
	c.call("wait_command", args{"sandbox_id": id, "pid": pid}, &w)
	if w.Running || w.ExitCode == nil || *w.ExitCode != 7 || w.Stderr != "no\n" ||
		!strings.HasSuffix(w.Stdout, "10000\n") ||
		w.StdoutOmitted == 0 ||
		w.StdoutBytes < 48000 {
		t.Errorf("at the end: %+v", w)
	}
	var part struct {
		Content    string
		NextOffset int64 `json:"next_offset"`
	}
	if c.call("read_file", args{"sandbox_id": id, "path": path, "max_bytes": 6}, &part); part.Content != "begun\n" ||
		part.NextOffset != 6 {
		t.Errorf("read_file of its output: %+v", part)
	}
	pid, _ = begin("sleep 1000")
	if c.call("wait_command", args{"sandbox_id": id, "pid": pid, "timeout_secs": 0.4}, &w); !w.Running {
		t.Errorf("while it sleeps: %+v", w)
	}
	c.call("signal_command", args{"sandbox_id": id, "pid": pid, "signal": "SIGKILL"}, nil)
	w = waited{}
	if c.call("wait_command", args{"sandbox_id": id, "pid": pid}, &w); w.Running || w.ExitCode != nil {
		t.Errorf("killed: %+v", w)
	}
	c.fails("wait_command", args{"sandbox_id": id, "pid": 4294967, "timeout_secs": 0}, "no command of start_command")
}

// Output that is too long for a model is shortened, and the answer says so.
func TestLongOutput(t *testing.T) {
	c := connect(t, start(t).Client, mcp.Run)
	id := c.spawn()
	var r struct {
		Stdout        string
		StdoutOmitted int64 `json:"stdout_omitted_bytes"`
		Replaced      bool  `json:"bytes_replaced"`
	}
	c.call("exec_command", args{"sandbox_id": id, "args": []string{"seq", "-f", "é %.0f", "200000"}}, &r)
	if len(r.Stdout) > 50<<10 || !strings.HasPrefix(r.Stdout, "é 1\n") || !strings.HasSuffix(r.Stdout, "é 200000\n") ||
		r.StdoutOmitted < 1<<20 || !strings.Contains(r.Stdout, fmt.Sprintf("[… %d bytes omitted …]", r.StdoutOmitted)) ||
		r.Replaced {
		t.Errorf("%d bytes, %d omitted, replaced %v", len(r.Stdout), r.StdoutOmitted, r.Replaced)
	}
	if c.call("exec_command", args{"sandbox_id": id, "args": []string{"printf", `a\377b`}}, &r); !r.Replaced ||
		r.Stdout != "a\uFFFDb" {
		t.Errorf("bytes: %+v", r)
	}
}

func TestFiles(t *testing.T) {
	c := connect(t, start(t).Client, mcp.Run)
	id, dir := c.spawn(), t.TempDir()
	type content struct {
		Content, Encoding string
		Size              int64
		NextOffset        int64 `json:"next_offset"`
	}
	for path, test := range map[string]struct{ in, encoding, want, as string }{
		"text":  {"héllo\n", "utf8", "héllo\n", "utf8"},
		"bytes": {"/wD+", "base64", "/wD+", "base64"},
		"empty": {"", "utf8", "", "utf8"},
	} {
		at := filepath.Join(dir, "sub", path)
		c.call("write_file", args{"sandbox_id": id, "path": at, "content": test.in, "encoding": test.encoding}, nil)
		var got content
		if c.call("read_file", args{"sandbox_id": id, "path": at}, &got); got.Content != test.want ||
			got.Encoding != test.as ||
			got.NextOffset != 0 {
			t.Errorf("%s: %+v", path, got)
		}
	}
	var part content
	at := filepath.Join(dir, "sub", "text")
	if c.call("read_file", args{"sandbox_id": id, "path": at, "max_bytes": 2}, &part); part.Content != "h" ||
		part.NextOffset != 1 ||
		part.Size != 7 {
		t.Errorf("a part that would cut a character: %+v", part)
	}
	if c.call("read_file", args{"sandbox_id": id, "path": at, "offset": 3}, &part); part.Content != "llo\n" {
		t.Errorf("from an offset: %+v", part)
	}
	png := []byte("\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR")
	if err := os.WriteFile(filepath.Join(dir, "x.png"), png, 0o644); err != nil {
		t.Fatal(err)
	}
	r := c.call("read_file", args{"sandbox_id": id, "path": filepath.Join(dir, "x.png")}, nil)
	if image, ok := r.Content[len(r.Content)-1].(*sdk.ImageContent); !ok || image.MIMEType != "image/png" ||
		!bytes.Equal(image.Data, png) {
		t.Errorf("an image: %+v", r.Content)
	}
	var listed struct{ Entries []struct{ Path, Type string } }
	if c.call("list_files", args{"sandbox_id": id, "path": dir, "depth": 2}, &listed); len(listed.Entries) != 5 {
		t.Errorf("list_files: %+v", listed)
	}
	c.fails("read_file", args{"sandbox_id": id, "path": dir}, "list_files")
	c.fails("read_file", args{"sandbox_id": id, "path": filepath.Join(dir, "none")}, "not_found_in_sandbox")
	c.fails(
		"write_file",
		args{"sandbox_id": id, "path": at, "content": "!", "encoding": "base64"},
		"content: is not base64",
	)
}

func TestNetwork(t *testing.T) {
	c := connect(t, start(t).Client, mcp.Run)
	id := c.spawn()
	var u struct{ URL string }
	if c.call("port_url", args{"sandbox_id": id, "port": 8000}, &u); !strings.Contains(u.URL, "8000-"+id) {
		t.Errorf("port_url: %+v", u)
	}
	var n struct {
		Mode        string
		Allow, Deny []string
	}
	if c.call("network", args{"sandbox_id": id, "mode": "allow", "allow": []string{"pypi.org"},
		"deny": []string{"10.0.0.0/8"}}, &n); n.Mode != "allow" ||
		len(n.Allow) != 1 {
		t.Errorf("network: %+v", n)
	}
	if c.call("network", args{"sandbox_id": id, "deny": []string{}}, &n); n.Mode != "allow" || len(n.Allow) != 1 ||
		len(n.Deny) != 0 {
		t.Errorf("network with less: %+v", n)
	}
	if c.call("network", args{"sandbox_id": id, "mode": "none"}, &n); n.Mode != "none" || len(n.Allow) != 0 {
		t.Errorf("network none: %+v", n)
	}
	c.fails("network", args{"sandbox_id": id, "allow": []string{"http://x/"}}, "allow")
}
