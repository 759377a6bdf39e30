package v1_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
)

// hostileTar replaces the tar program in a hostile stage. In the archive of src/2, it sends a file
// whose path leads through a directory that is not in the archive.
const hostileTar = `#!/bin/bash
if [ "$1 $2 $3" = "-cf - -C" ] && [[ $4 = */src/2 ]]; then set -- -cf - -C "$4" x/passwd; fi
exec REAL "$@"
`

// The files that COPY reads from another stage are written only to the target of the COPY, whatever
// the stage's programs send. A link in one source does not redirect the files of the next source.
func TestCopyFromAHostileStageStaysInItsTarget(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	tar, err := exec.LookPath("tar")
	if err != nil {
		t.Fatal(err)
	}
	real, fake := filepath.Join(bin, "realtar"), filepath.Join(bin, "tar")
	p, err := os.ReadFile(tar)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{real: string(p), fake: strings.Replace(hostileTar, "REAL", real, 1)} {
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r := apirig.Start(t, apirig.Options{Agent: func(dir string) *exec.Cmd {
		cmd := exec.Command("unshare", "-m", "--propagation", "private", "/bin/bash", "-c",
			`mount --bind "$0" "$(readlink -f "$2")" && exec "$1"`, fake, self, tar)
		cmd.Env = append(os.Environ(), apirig.AgentDirEnv+"="+dir)
		return cmd
	}})
	if _, err := r.Bake(t.Context(), r.Parent); err != nil {
		t.Fatal(err)
	}
	copyEvil(t, r, t.TempDir(), "COPY --from=evil DIR/src/* DIR/dst/", "x")
}

// If one COPY has written a link, the link does not redirect the files of a later COPY out of the
// later COPY's target.
func TestCopyThroughALinkOfAnEarlierCopy(t *testing.T) {
	r, dir := builder(t)
	copyEvil(t, r, dir, "COPY --from=evil DIR/src/1 DIR/dst/\nCOPY --from=evil DIR/src/2 DIR/dst/", "DIR/dst/")
}

// A link in one archive of an ADD does not redirect later files out of the target, whether these
// files come from the next archive or from the context.
func TestAddOfArchivesStaysInItsTarget(t *testing.T) {
	for what, add := range map[string]string{"an archive": "b.tgz", "a directory": "c"} {
		t.Run(what, func(t *testing.T) {
			r, dir := builder(t)
			_, log, err := built(t, r.Client, client.BuildRequest{Tag: "added", Dockerfile: strings.NewReplacer("DIR", dir,
				"NEXT", add).Replace("FROM a.b\nRUN mkdir -p DIR/etc && echo mine > DIR/etc/passwd\nADD a.tgz NEXT DIR/dst/\n"),
			}, map[string]string{"a.tgz": tgzOf(t, "x", "link:"+dir+"/etc"), "b.tgz": tgzOf(t, "x/passwd", "evil"),
				"c/x/passwd": "evil"})
			if err == nil || !strings.Contains(err.Error(), "links that lead out") {
				t.Errorf("the build: %v\n%s", err, log)
			}
			if p, err := os.ReadFile(dir + "/etc/passwd"); err != nil || string(p) != "mine\n" {
				t.Errorf("etc/passwd, which no ADD names, has %q, %v", p, err)
			}
		})
	}
}

// copyEvil builds from a stage with a link in src/1 and a file in src/2. The path of the file leads
// through the link. The instructions must fail with an error that contains the text in says.
func copyEvil(t *testing.T, r *apirig.Rig, dir, instructions, says string) {
	t.Helper()
	in := strings.NewReplacer("DIR", dir)
	_, log, err := built(t, r.Client, client.BuildRequest{Tag: "copied", Dockerfile: in.Replace(`FROM a.b AS evil
RUN mkdir -p DIR/src/1 DIR/src/2/x && ln -s DIR/etc DIR/src/1/x && echo evil > DIR/src/2/x/passwd
FROM a.b
RUN mkdir -p DIR/etc && echo mine > DIR/etc/passwd
` + instructions + "\n")}, nil)
	if err == nil || !strings.Contains(err.Error(), in.Replace(says)) || !strings.Contains(err.Error(), "link") {
		t.Errorf("the build: %v\n%s", err, log)
	}
	if p, err := os.ReadFile(dir + "/etc/passwd"); err != nil || string(p) != "mine\n" {
		t.Errorf("etc/passwd, which no COPY names, has %q, %v", p, err)
	}
}
