package build

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// shells() returns functions that run a script. The first function uses the host's shell, like an
// image with GNU programs. The second function uses busybox, with nothing else in the PATH, like an
// image with busybox.
func shells(t *testing.T) map[string]func(script string, args ...string) *exec.Cmd {
	t.Helper()
	run := func(shell []string, path string) func(string, ...string) *exec.Cmd {
		return func(script string, args ...string) *exec.Cmd {
			cmd := exec.Command(shell[0], append(append(shell[1:len(shell):len(shell)], "-c", script, "sh"), args...)...)
			cmd.Env = []string{"PATH=" + path}
			return cmd
		}
	}
	all := map[string]func(string, ...string) *exec.Cmd{"sh": run([]string{"/bin/sh"}, os.Getenv("PATH"))}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Log("this host has no busybox: its programs are not tried")
		return all
	}
	list, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name := range strings.FieldsSeq(string(list)) {
		if err := os.Symlink(busybox, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	all["busybox"] = run([]string{busybox, "sh"}, dir)
	return all
}

// The script kills processes that a command has left running. It finds these processes by the
// variable that the build sets for its commands. The variable may be at any position in the
// environment.
func TestLeftoversAreKilled(t *testing.T) {
	for name, shell := range shells(t) {
		mark := stepVariable + "=test of " + name
		left, other := exec.Command("sleep", "1000"), exec.Command("sleep", "1000")
		left.Env, other.Env = []string{"A=1", mark, "B=2"}, []string{"A=1", mark + "x"}
		for _, cmd := range []*exec.Cmd{left, other} {
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
		}
		out, err := shell(leftoversScript, mark).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		if err := other.Process.Kill(); err != nil { // the process is still running
			t.Errorf("%s: a process with another mark: %v", name, err)
		}
		_ = other.Wait()                                               // the error says that the process was killed
		if strings.Contains(statusOf(left.Process.Pid), "State:\tS") { // not a zombie
			t.Errorf("%s: the process still runs", name)
			_ = left.Process.Kill()
		}
		_ = left.Wait() // the error says that the process was killed
	}
}

func statusOf(pid int) string {
	text, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status")) // empty if the process has exited
	return string(text)
}

// findScript finds files by a pattern. placeScript copies files in the same way as COPY, even if
// the target has a link to a directory.
func TestFilesArePlaced(t *testing.T) {
	for name, shell := range shells(t) {
		dir := t.TempDir()
		out, err := shell(`cd "$1" && mkdir -p in/sub in/alias dst/real && echo n >in/x && echo h >in/.hidden &&
echo y >in/sub/y && echo q >in/alias/q && ln -s real dst/alias && ln -s x in/link && echo 1 >one`, dir).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		if out, err = shell(findScript, dir+"/in/*").CombinedOutput(); err != nil ||
			strings.ReplaceAll(string(out), dir, "") != "d/in/alias\nf/in/link\nd/in/sub\nf/in/x\n" {
			t.Errorf("%s: found %q, %v", name, out, err)
		}
		l, err := net.Listen("unix", dir+"/in/.socket") // an archive of tar has no sockets
		if err != nil {
			t.Fatal(err)
		}
		if out, err = shell(findScript, dir+"/in/.*").CombinedOutput(); err != nil ||
			strings.ReplaceAll(string(out), dir, "") != "f/in/.hidden\n" {
			t.Errorf("%s: found %q, %v", name, out, err)
		}
		l.Close()
		if out, err = shell(placeScript, dir+"/in", dir+"/dst", "", "u=rwX,go=rX", "", "").CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		for file, want := range map[string]string{"x": "n", ".hidden": "h", "sub/y": "y", "real/q": "q", "alias/q": "q",
			"link": "n"} {
			if text, err := os.ReadFile(filepath.Join(dir, "dst", file)); err != nil || string(text) != want+"\n" {
				t.Errorf("%s: %s is %q, %v", name, file, text, err)
			}
		}
		if to, err := os.Readlink(filepath.Join(dir, "dst/alias")); err != nil || to != "real" {
			t.Errorf("%s: the link leads to %q, %v", name, to, err)
		}
	}
}

// Files from other guests are written only below the target. placeScript follows a link in the
// target only if the link does not lead out of the target, whatever the name of the link is. It
// does not set owners and modes through links that are among the files.
func TestFilesOfOthersStayInTheTarget(t *testing.T) {
	for name, shell := range shells(t) {
		for where, refused := range map[string]bool{"out": true, "deep/out": true, "again": true, "line": true, "\n": true,
			"\n\n": true, "-n": true, `\c`: true, "in": false, "deep/in": false} {
			shown := "./" + strings.Trim(where, "\n")
			dir := t.TempDir()
			out, err := shell(`cd "$1" && mkdir -p etc "dst
" dst/real dst/deep src/"$2" && echo mine >etc/passwd && chmod 600 etc/passwd &&
ln -s "$1/etc" dst/out && ln -s ../../etc dst/deep/out && ln -s out dst/again && ln -s real dst/in &&
ln -s ../real dst/deep/in && ln -s "../dst
" dst/line && { [ -L dst/"$2" ] || ln -s "$1/etc" dst/"$2"; } &&
echo evil >src/"$2"/passwd && ln -s "$1/etc/passwd" src/link && ln -s "$1/etc" src/a`, dir,
				where).CombinedOutput()
			if err != nil {
				t.Fatalf("%s: %v\n%s", name, err, out)
			}
			out, err = shell(placeScript, dir+"/src", dir+"/dst", "", "777", "", "others").CombinedOutput()
			if (err != nil) != refused || refused && !strings.Contains(string(out), shown) {
				t.Errorf("%s, %q: %v\n%s", name, where, err, out)
			}
			info, err := os.Stat(dir + "/etc/passwd")
			if text, err2 := os.ReadFile(dir + "/etc/passwd"); err != nil || err2 != nil || string(text) != "mine\n" ||
				info.Mode() != 0o600 {
				t.Errorf("%s, %q: the file elsewhere has %q, %v, %v", name, where, text, info.Mode(), errors.Join(err, err2))
			}
			if _, err := os.Stat(dir + "/dst/real/passwd"); (err != nil) != refused {
				t.Errorf("%s, %q: in the target: %v", name, where, err)
			}
		}
	}
}

// A single file replaces a link of the same name, as in Docker, and does not follow the link.
func TestAFileReplacesALink(t *testing.T) {
	for name, shell := range shells(t) {
		dir := t.TempDir()
		out, err := shell(`cd "$1" && mkdir etc dst src && ln -s "$1/etc" dst/x && echo new >src/x`, dir).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		if out, err = shell(placeScript, dir+"/src", dir+"/dst/", "", "", "single", "").CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		if info, err := os.Lstat(dir + "/dst/x"); err != nil || !info.Mode().IsRegular() {
			t.Errorf("%s: dst/x is %v, %v", name, info.Mode(), err)
		}
		if list, err := os.ReadDir(dir + "/etc"); err != nil || len(list) != 0 {
			t.Errorf("%s: elsewhere there are %v, %v", name, list, err)
		}
	}
}

// The source of a bind mount may come from another guest, so it must not be a symbolic link. Such a
// link would lead to a file of the guest in which the source is mounted.
func TestALinkIsNotMounted(t *testing.T) {
	for name, shell := range shells(t) {
		dir := t.TempDir()
		if err := os.Symlink("/etc/passwd", filepath.Join(dir, "cfg")); err != nil {
			t.Fatal(err)
		}
		out, err := shell(mountScript, "bind", dir+"/cfg", dir+"/target", "ro").CombinedOutput()
		if err == nil {
			_ = exec.Command("umount", dir+"/target").Run() // fails if nothing is mounted
		}
		if err == nil || !strings.Contains(string(out), "the source cfg is a symbolic link") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
