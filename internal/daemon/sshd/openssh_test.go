package sshd_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pkg/sftp"

	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/sshd"
)

// withKey returns a rig and a registered key.
func withKey(t *testing.T) (*rig, key) {
	t.Helper()
	r := start(t, apirig.Options{}, sshd.Limits{})
	k := newKey(t)
	r.register(k, "default")
	return r, k
}

func TestOpenSSH(t *testing.T) {
	r, k := withKey(t)
	if out := output(t, r.openSSH(k, "ssh", "box", "echo", "a  b", "'c  d'")); out != "a b c  d\n" {
		t.Errorf("%q", out)
	}
	cmd := r.openSSH(k, "ssh", "-tt", "box", "echo $TERM; stty size >/dev/null && exit 9")
	cmd.Env = append(cmd.Env, "TERM=vt220")
	if out, err := cmd.Output(); string(out) != "vt220\r\n" || cmd.ProcessState.ExitCode() != 9 {
		t.Errorf("%q, %v", out, err)
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	cmd = r.openSSH(k, "ssh", "box", "cat")
	cmd.Stdin = bytes.NewReader(large)
	if out, err := cmd.Output(); !bytes.Equal(out, large) {
		t.Errorf("%d bytes of %d, %v", len(out), len(large), err)
	}
	cmd = r.openSSH(k, "ssh", "root+"+r.id+"@box", "id -un")
	if out := output(t, cmd); out != "root\n" {
		t.Errorf("%q", out)
	}
	cmd = r.openSSH(k, "ssh", "-R", "0:localhost:1", "-o", "ExitOnForwardFailure=yes", "box", "true")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "remote port forwarding failed") {
		t.Errorf("%s, %v", out, err)
	}
	cmd = r.openSSH(k, "ssh", "no-such-account+"+r.id+"@box", "id -un")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "no-such-account") {
		t.Errorf("%s, %v", out, err)
	}
}

func TestLocalForward(t *testing.T) {
	r, k := withKey(t)
	l, err := net.Listen("tcp", "127.0.0.1:0") // a server in the guest
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(conn, "a greeting")
			conn.Close()
		}
	}()
	socket := filepath.Join(t.TempDir(), "s")
	cmd := r.openSSH(k, "ssh", "-N", "-L", fmt.Sprintf("%s:localhost:%d", socket, l.Addr().(*net.TCPAddr).Port), "box")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	var conn net.Conn
	eventually(t, "ssh listens", func() bool {
		conn, err = net.Dial("unix", socket)
		return err == nil
	})
	if got, err := io.ReadAll(conn); string(got) != "a greeting" {
		t.Errorf("%q, %v", got, err)
	}
}

// tree makes a directory with files of several kinds.
func tree(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tree")
	for name, content := range map[string][]byte{
		"a": []byte("text\n"), "sub/empty": nil, "sub/large": bytes.Repeat([]byte("large"), 1<<20), "with space": []byte("x"),
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "a"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// same() compares two directories with diff, and compares the mode of the file "a" in both
// directories.
func same(t *testing.T, a, b string) {
	t.Helper()
	needs(t, "diff")
	cmd := (&rig{t: t}).plain("diff", "-r", a, b)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	want, err1 := os.Stat(filepath.Join(a, "a"))
	got, err2 := os.Stat(filepath.Join(b, "a"))
	if err1 != nil || err2 != nil || want.Mode() != got.Mode() {
		t.Errorf("modes %v, %v", want.Mode(), got.Mode())
	}
}

func TestSCP(t *testing.T) {
	r, k := withKey(t)
	local, to := tree(t), t.TempDir()
	output(t, r.openSSH(k, "scp", "-rp", local, "box:"+to+"/there"))
	same(t, local, to+"/there")
	output(t, r.openSSH(k, "scp", "-r", "box:"+to+"/there", to+"/back"))
	same(t, local, to+"/back")
	// Relative paths begin at the home directory of the guest's account.
	home := strings.TrimSpace(output(t, r.openSSH(k, "ssh", "box", "pwd")))
	name := fmt.Sprintf("forkd-sshd-test-%d", os.Getpid())
	defer os.Remove(filepath.Join(home, name))
	output(t, r.openSSH(k, "scp", filepath.Join(local, "a"), "box:"+name))
	if _, err := os.Stat(filepath.Join(home, name)); err != nil {
		t.Error(err)
	}
	if out, err := r.openSSH(k, "scp", "box:/no/such/file", to).CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "No such file") {
		t.Errorf("%s, %v", out, err)
	}
	left, err := filepath.Glob(r.programs + "/*")
	if err != nil || len(left) != 1 || !strings.Contains(left[0], "/sftp-") {
		t.Errorf("%v, %v", left, err)
	}
}

func TestOldSCP(t *testing.T) { // the protocol before SFTP, which needs scp in the guest
	r, k := withKey(t)
	local, to := tree(t), t.TempDir()
	output(t, r.openSSH(k, "scp", "-Orp", local, "box:"+to+"/there"))
	same(t, local, to+"/there")
}

func TestSFTPBatch(t *testing.T) {
	r, k := withKey(t)
	local, to := tree(t), t.TempDir()
	cmd := r.openSSH(k, "sftp", "-b", "-", "box")
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`cd %[2]s
mkdir d
put -p %[1]s/a d/a
chmod 600 d/a
rename d/a d/b
symlink b d/link
ln d/b d/hard
get d/link %[2]s/got
df d
rm d/hard
ls -l d
`, local, to))
	if out := output(t, cmd); !strings.Contains(out, "link") {
		t.Errorf("%s", out)
	}
	got, err := os.ReadFile(to + "/got")
	if err != nil || string(got) != "text\n" {
		t.Errorf("%q, %v", got, err)
	}
	if fi, err := os.Stat(to + "/d/b"); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi, err)
	}
}

// Editors write parts of files, and several sessions may put the SFTP server into the guest at the
// same time.
func TestSFTPSessions(t *testing.T) {
	r := start(t, apirig.Options{}, sshd.Limits{})
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, make([]byte, 8*4), 0o600); err != nil {
		t.Fatal(err)
	}
	c := r.client()
	errs := make(chan error)
	for i := range 8 {
		go func() {
			errs <- func() error {
				s, err := sftp.NewClient(c)
				if err != nil {
					return err
				}
				defer s.Close()
				f, err := s.OpenFile(file, os.O_WRONLY)
				if err != nil {
					return err
				}
				_, err = f.WriteAt(fmt.Appendf(nil, "%d...", i), int64(i*4))
				return err
			}()
		}()
	}
	for range 8 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil || string(got) != "0...1...2...3...4...5...6...7..." {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := r.session(c).SendRequest("subsystem", true, []byte("\x00\x00\x00\x05other")); err != nil {
		t.Error(err)
	}
	if err := r.session(c).RequestSubsystem("netconf"); err == nil {
		t.Error("an unknown subsystem was accepted")
	}
}

func TestRsync(t *testing.T) {
	r, k := withKey(t)
	local, to := tree(t), t.TempDir()
	output(t, r.openSSH(k, "rsync", "-a", local+"/", "box:"+to+"/there"))
	same(t, local, to+"/there")
	if err := os.WriteFile(local+"/a", []byte("changed\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	output(t, r.openSSH(k, "rsync", "-a", local+"/", "box:"+to+"/there"))
	output(t, r.openSSH(k, "rsync", "-a", "box:"+to+"/there/", to+"/back"))
	same(t, local, to+"/back")
}

func TestGit(t *testing.T) {
	r, k := withKey(t)
	dir := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		cmd := r.openSSH(k, "git", append([]string{"-c", "user.name=t", "-c", "user.email=t@example.com"}, args...)...)
		return output(t, cmd)
	}
	git("init", "-q", "--bare", dir+"/origin")
	git("clone", "-q", "box:"+dir+"/origin", dir+"/work")
	git("-C", dir+"/work", "commit", "-q", "--allow-empty", "-m", "the message")
	git("-C", dir+"/work", "push", "-q", "origin", "HEAD:main")
	if out := git("--git-dir="+dir+"/origin", "log", "--format=%s", "main"); out != "the message\n" {
		t.Errorf("%q", out)
	}
}

// Several sessions can share a connection, as the sessions of editors do.
func TestControlMaster(t *testing.T) {
	r, k := withKey(t)
	socket := filepath.Join(t.TempDir(), "c")
	master := r.openSSH(k, "ssh", "-M", "-N", "-S", socket, "box")
	if err := master.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = master.Process.Kill(); _ = master.Wait() }()
	eventually(t, "the master", func() bool { return r.plain("ssh", "-S", socket, "-O", "check", "box").Run() == nil })
	for range 3 {
		cmd := r.plain("ssh", "-S", socket, "box", "echo shared")
		if out := output(t, cmd); out != "shared\n" {
			t.Errorf("%q", out)
		}
	}
}

// If a client does not read, its full window stops the process. The process continues when the
// client reads again.
func TestSlowClient(t *testing.T) {
	r, k := withKey(t)
	cmd := r.openSSH(k, "ssh", "box", "head -c 30000000 /dev/zero")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	n, err := io.Copy(io.Discard, out)
	if n != 30_000_000 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
