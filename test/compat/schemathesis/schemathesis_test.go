// Package schemathesis runs the program schemathesis against the API. The inputs include some that
// the API's document does not allow. No answer may have a status of 500 or above, or contradict the
// document.
//
// The API is the real one over fake VMs. Each VM has a real agent. The agent is a process on this
// host, but has no network and sees only the host's /usr, read only. scripts/compat runs this
// package.
package schemathesis

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/apitest"
	"github.com/forkd/forkd/internal/embedded"
)

// skipped matches the operations that schemathesis cannot test: an endless stream, requests
// answered by servers in sandboxes, statistics of fake VMs' memory, and messages of the Model
// Context Protocol. The group mcp tests this protocol.
const skipped = `^/mcp$|^/v1/events$|/proxy/|/tcp/|/stats$`

// excluded are checks of properties that the API does not promise.
const excluded = "positive_data_acceptance" // the document cannot list the files, snapshots and users that exist

func TestSchemathesis(t *testing.T) {
	program := os.Getenv("SCHEMATHESIS")
	if program == "" {
		t.Skip("SCHEMATHESIS is not set: run scripts/compat schemathesis")
	}
	rig := apirig.Start(t, apirig.Options{Unchecked: true, Agent: func(dir string) *exec.Cmd {
		return jailedAgent(t, dir)
	}})
	parent := rig.Parent
	parent.Tag = "base"
	if _, err := rig.Bake(t.Context(), parent); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "schemathesis.toml")
	if err := os.WriteFile(config, []byte(configOf(t, rig)), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "--config-file", config, "run", rig.URL+"/openapi.json",
		"--header", "Authorization: Bearer "+apirig.Token, "--exclude-checks", excluded, "--continue-on-failure",
		"--exclude-path-regex", skipped,
		"--max-time", os.Getenv("SCHEMATHESIS_SECONDS"), "--request-timeout", "60", "--no-color",
		"--report", "json", "--report-json-path", os.Getenv("SCHEMATHESIS_REPORT"))
	if seed := os.Getenv("SEED"); seed != "" {
		cmd.Args = append(cmd.Args, "--seed", seed)
	}
	cmd.Dir = t.TempDir() // schemathesis leaves a directory in its working directory
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		t.Error(err)
	}
}

// configOf returns a configuration in which every operation on a sandbox uses an existing sandbox
// of its own, and every operation on a snapshot uses the existing snapshot base. With random names,
// the status of the answer would always be 404. Operations that remove an object do use random
// names.
func configOf(t *testing.T, rig *apirig.Rig) string {
	var config strings.Builder
	for _, route := range apitest.Routes(t) {
		method, path, _ := strings.Cut(route, " ")
		if !slices.Contains([]string{"GET", "PUT", "POST"}, method) {
			continue
		}
		switch {
		case strings.Contains(path, "/{id}"):
			f, err := rig.Fork(t.Context(), client.ForkRequest{SnapshotTag: "base", N: 1})
			if err != nil {
				t.Fatal(err)
			}
			endless := ""
			if strings.HasSuffix(path, "/logs") {
				endless = `, "query.follow" = "false"`
			}
			fmt.Fprintf(&config, "[[operations]]\ninclude-name = %q\nparameters = { \"path.id\" = %q%s }\n", route,
				f.Sandboxes[0].ID, endless)
		case strings.Contains(path, "/{tag}"):
			fmt.Fprintf(&config, "[[operations]]\ninclude-name = %q\nparameters = { \"path.tag\" = \"base\" }\n", route)
		}
	}
	return config.String()
}

// enter is a script that makes dir the root directory of a process. The process sees only the
// content of dir, and this host's /usr, read only.
const enter = `set -e
mount --bind /usr "$1/usr"
mount -o remount,bind,ro "$1/usr"
mount -t tmpfs tmp "$1/tmp"
mount -t proc proc "$1/proc"
for dev in null zero urandom; do
	touch "$1/dev/$dev"
	mount --bind "/dev/$dev" "$1/dev/$dev"
done
cd "$1"
exec chroot "$1" /agent -listen-dir /`

// jailedAgent returns an agent that serves its sockets in dir. It cannot change anything outside
// dir.
func jailedAgent(t *testing.T, dir string) *exec.Cmd {
	agent, err := embedded.Open(embedded.Agent)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"usr", "tmp", "proc", "etc", "root", "dev"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+name, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "agent"), agent, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "etc/passwd"), []byte("root:x:0:0::/root:/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return exec.Command("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--net",
		"sh", "-c", enter, "sh", dir)
}
