package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRouterRefusesWrongOptions(t *testing.T) {
	nodes := filepath.Join(t.TempDir(), "nodes.json")
	if err := os.WriteFile(nodes, []byte(`{"nodes": [{"name": "a", "url": "http://127.0.0.1:1"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{nil, exitUsage, "--nodes is missing"},
		{[]string{"--nodes", nodes, "--policy", "x"}, exitUsage, "want spread or pack"},
		{[]string{"--nodes", nodes, "--proxy-domain", "1.2.3.4"}, exitUsage, "--proxy-domain"},
		{[]string{"--nodes", nodes + "x"}, exitError, "no such file"},
		{[]string{"--nodes", nodes, "--tls-cert", "x"}, exitError, "want both"},
		{[]string{"--nodes", nodes, "--bind", "none"}, exitUsage, "--bind"},
		{[]string{"--nodes", nodes, "--bind", "127.0.0.1:0", "--metrics-bind", "none"}, exitError, "none: missing port"},
	} {
		var stderr bytes.Buffer
		stdio := Stdio{In: strings.NewReader(""), Out: &bytes.Buffer{}, Err: &stderr}
		code := Main(append([]string{"router"}, c.args...), stdio)
		if code != c.code || !strings.Contains(stderr.String(), c.want) {
			t.Errorf("%q: %d, %s; want %d, %s", c.args, code, stderr.String(), c.code, c.want)
		}
	}
}
