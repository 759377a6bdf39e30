package sshmux

import (
	"crypto/ed25519"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/forkd/forkd/internal/jail"
	"github.com/forkd/forkd/internal/jail/posture"
	"github.com/forkd/forkd/internal/proto/sshproto"
)

func TestMain(m *testing.M) {
	if os.Args[0] == Name {
		os.Exit(Main())
	}
	os.Exit(m.Run())
}

// running is a forkd-ssh process. The test plays both its daemon and its client.
type running struct {
	p       *os.Process
	control *sshproto.Control
	client  net.Conn
	hostKey ssh.Signer
}

// start starts this program as forkd-ssh.
func start(t *testing.T) *running {
	t.Helper()
	program, err := posture.TestProgram(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	jails, err := jail.New(jail.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	file, err := server.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	control, theirs, err := sshproto.NewControl()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	attr := os.ProcAttr{Dir: "/", Files: []*os.File{nil, nil, os.Stderr, theirs, file}, Env: []string{"GOMAXPROCS=1"}}
	p, err := jails.Start(program, []string{Name}, attr, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Kill()
		client.Close()
		control.Close()
	})
	if m, err := control.Receive(); err != nil {
		t.Fatal(m, err)
	}
	return &running{p, control, client, hostKey(t)}
}

func hostKey(t *testing.T) ssh.Signer {
	t.Helper()
	key, err := ssh.NewSignerFromKey(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// ends waits until the process has exited, and returns the state of the process.
func (r *running) ends(t *testing.T) *os.ProcessState {
	t.Helper()
	late := time.AfterFunc(20*time.Second, func() { _ = r.p.Kill() })
	state, err := r.p.Wait()
	if err != nil || !late.Stop() {
		t.Fatalf("the process does not end: %v", err)
	}
	return state
}

// The process is in its jail before it reads anything.
func TestPosture(t *testing.T) {
	r := start(t)
	for _, loose := range posture.Check(r.p.Pid, posture.Want{Files: maxFiles, Bytes: maxLog, Descriptors: []string{
		"(/dev)?/null", `(socket|pipe):\[\d+\]`, `anon_inode:\[(eventpoll|eventfd)\]`,
		`/.*cpu\.(max|cfs_quota_us|cfs_period_us)`, // the cgroup's CPU limit, which the Go runtime reads
	}}) {
		t.Error(loose)
	}
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", r.p.Pid))
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf(`(?m)^Max data size +%d +%d `, StrangerMemory, ClientMemory)
	if !regexp.MustCompile(want).Match(limits) {
		t.Errorf("%s\nwant %s", limits, want)
	}
}

// The process exits when its daemon or its client has left.
func TestEnds(t *testing.T) {
	for name, end := range map[string]func(*running){
		"daemon": func(r *running) { r.control.Close() },
		"client": func(r *running) { r.client.Close() },
	} {
		r := start(t)
		if err := r.control.Send(&sshproto.Setup{HostKey: r.hostKey.PublicKey().Marshal()}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(r.client, make([]byte, 4)); err != nil { // the version of SSH
			t.Fatal(err)
		}
		end(r)
		if state := r.ends(t); state.ExitCode() != exitClean {
			t.Errorf("%s: %v", name, state)
		}
	}
}
