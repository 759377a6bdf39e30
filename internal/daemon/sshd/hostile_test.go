package sshd_test

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/daemon/sshd"
)

// proved counts the proofs that a client gave for its key.
type proved struct {
	ssh.Signer
	n atomic.Int32
}

func (p *proved) Sign(r io.Reader, data []byte) (*ssh.Signature, error) {
	p.n.Add(1)
	return p.Signer.Sign(r, data)
}

// An unknown client learns nothing about keys and sandboxes. A known client does not learn whether
// a sandbox of another owner exists.
func TestStrangers(t *testing.T) {
	r := start(t, apirig.Options{Tokens: []auth.Token{{Name: "team", Scope: auth.Run, Prefix: "team/"},
		{Name: "reader", Scope: auth.Read}, {Name: "root", Scope: auth.Admin}}}, sshd.Limits{})
	theirs := r.fork(client.ForkRequest{Labels: map[string]string{"team/x": "1"}})
	missing := theirs[:len(theirs)-4] + "zzzz"
	login := func(name string, k ssh.Signer) (banner string, err error) {
		c, banner, err := r.dial(name, k)
		if err == nil {
			c.Close()
		}
		return banner, err
	}
	stranger := &proved{Signer: newKey(t)}
	var answers []string
	for _, name := range []string{r.id, missing, "no+id+at all", ""} {
		banner, err := login(name, stranger)
		answers = append(answers, fmt.Sprint(banner, err))
	}
	for _, a := range answers {
		if a != answers[0] || !strings.Contains(a, "unable to authenticate") {
			t.Errorf("a stranger can tell apart: %q", answers)
		}
	}
	if stranger.n.Load() != int32(len(answers)) { // otherwise a stranger could find out whether a key is registered
		t.Errorf("%d proofs were wanted of the stranger", stranger.n.Load())
	}
	team, reader := newKey(t), newKey(t)
	r.register(team, "team")
	r.register(reader, "reader")
	if banner, err := login(theirs, team); err != nil {
		t.Errorf("%q, %v", banner, err)
	}
	others, err1 := login(r.id, team)
	none, err2 := login(missing, team)
	if err1 == nil || err2 == nil || !strings.Contains(others, r.id) ||
		strings.ReplaceAll(others, r.id, "ID") != strings.ReplaceAll(none, missing, "ID") {
		t.Errorf("a sandbox of others: %q, %v; a missing one: %q, %v", others, err1, none, err2)
	}
	if banner, err := login(r.id, reader); err == nil || !strings.Contains(banner, "scope read") {
		t.Errorf("%q, %v", banner, err)
	}
	r.register(team, "root") // the same key may stand for several principals
	if banner, err := login(r.id, team); err != nil {
		t.Errorf("%q, %v", banner, err)
	}
}

func TestRefusedMethods(t *testing.T) {
	r := start(t, apirig.Options{}, sshd.Limits{})
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Skip(err) // Go refuses to make such a weak key
	}
	weak, err := ssh.NewSignerFromKey(small)
	if err != nil {
		t.Fatal(err)
	}
	for name, method := range map[string]ssh.AuthMethod{
		"password": ssh.Password("x"), "weak": ssh.PublicKeys(weak),
		"keyboard": ssh.KeyboardInteractive(func(string, string, []string, []bool) ([]string, error) { return nil, nil }),
	} {
		c, err := ssh.Dial("tcp", r.SSH.Addr, &ssh.ClientConfig{User: r.id, Auth: []ssh.AuthMethod{method},
			HostKeyCallback: ssh.FixedHostKey(r.SSH.HostKey)})
		if err == nil {
			c.Close()
			t.Errorf("%s was accepted", name)
		}
	}
}

// A connection ends when its key is revoked, or when the key's token is removed. A new token of the
// same name does not get the key.
func TestRevokedKey(t *testing.T) {
	for name, revoke := range map[string]func(*rig) error{
		"key":         func(r *rig) error { return os.WriteFile(r.SSH.KeyFile, nil, 0o600) },
		"file":        func(r *rig) error { return os.Remove(r.SSH.KeyFile) },
		"broken file": func(r *rig) error { return os.WriteFile(r.SSH.KeyFile, []byte("uid:x\n"), 0o600) },
		"token": func(r *rig) error {
			file, err := os.ReadFile(r.TokenFile)
			if err == nil {
				file, err = auth.Remove(file, "mine")
			}
			if err == nil {
				file, _, err = auth.Add(file, auth.Token{Name: "mine", Scope: auth.Admin}, false)
			}
			return errors.Join(err, os.WriteFile(r.TokenFile, file, 0o600))
		},
	} {
		r := start(t, apirig.Options{Tokens: []auth.Token{{Name: "mine", Scope: auth.Run}}},
			sshd.Limits{Keepalive: 50 * time.Millisecond})
		k := newKey(t)
		r.register(k, "mine")
		c, _, err := r.dial(r.id, k)
		if err != nil {
			t.Fatal(err)
		}
		s := r.session(c)
		if err := s.Start("sleep 100"); err != nil {
			t.Fatal(err)
		}
		if err := revoke(r); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- c.Wait() }()
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Errorf("%s: the connection stays", name)
		}
		if c, _, err := r.dial(r.id, k); err == nil {
			c.Close()
			t.Errorf("%s: the key is still accepted", name)
		}
	}
}

// Connections that do not log in are limited for each peer, are closed after a time, and keep no
// other client out.
func TestHalfHandshakes(t *testing.T) {
	r := start(t, apirig.Options{}, sshd.Limits{LoginsPerPeer: 2, Login: time.Second})
	k := newKey(t)
	r.register(k, "default")
	open := func() net.Conn {
		conn, err := net.Dial("tcp", r.SSH.Addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	ends := func(conn net.Conn) (got []byte, took time.Duration) {
		begun := time.Now()
		if err := conn.SetDeadline(begun.Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(conn)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("the connection stays open")
		}
		return got, time.Since(begun)
	}
	var held []net.Conn
	banner := make([]byte, 4)
	for range 3 {
		conn := open()
		if _, err := io.ReadFull(conn, banner); err != nil || string(banner) != "SSH-" { // the server has accepted conn
			t.Fatalf("%q, %v", banner, err)
		}
		held = append(held, conn)
	}
	if _, took := ends(held[0]); took > 500*time.Millisecond {
		t.Errorf("the oldest of three connections ends after %v", took)
	}
	c, _, err := r.dial(r.id, k)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, took := ends(held[1]); took > 500*time.Millisecond {
		t.Errorf("a client has logged in, and the older of two connections ends after %v", took)
	}
	fmt.Fprint(held[2], "SSH-2.0-x\r\n")
	ends(held[2])
	if text := metricsOf(r); !strings.Contains(text, "forkd_ssh_logins_total{result=\"busy\"} 2\n") {
		t.Error(text)
	}
	if out, err := r.session(c).Output("echo works"); string(out) != "works\n" { // c is older than the limit for a login
		t.Errorf("%q, %v", out, err)
	}
	for _, garbage := range []string{"GET / HTTP/1.1\r\n\r\n", strings.Repeat("x", 1<<20),
		"SSH-2.0-x\r\n\xff\xff\xff\xff" + strings.Repeat("\x00", 1<<16), "SSH-1.0-x\r\n",
		"SSH-2.0-x\r\n\x00\x00\x00\x01\x00"} {
		conn := open()
		go func() { _, _ = io.WriteString(conn, garbage) }() // may fail, because the server closes the connection
		ends(conn)
	}
}

func TestChannelLimits(t *testing.T) {
	r := start(t, apirig.Options{}, sshd.Limits{ChannelsPerClient: 3, Channels: 8})
	open := func(c *ssh.Client) (opened []*ssh.Session, err error) {
		for range 3000 {
			s, err := c.NewSession()
			if err != nil {
				return opened, err
			}
			opened = append(opened, s)
		}
		return opened, nil
	}
	isFull := func(err error) bool {
		var refused *ssh.OpenChannelError
		return errors.As(err, &refused) && refused.Reason == ssh.ResourceShortage
	}
	c := r.client()
	opened, err := open(c)
	if len(opened) != 3 || !isFull(err) {
		t.Fatalf("%d, %v", len(opened), err)
	}
	for range 2000 {
		if _, _, err := c.OpenChannel("session", nil); !isFull(err) {
			t.Fatal(err)
		}
	}
	for _, s := range opened {
		s.Close()
	}
	eventually(t, "room for sessions", func() bool {
		s, err := c.NewSession()
		if err == nil {
			s.Close()
		}
		return err == nil
	})
	total := 0
	for range 4 {
		opened, err := open(r.client())
		total += len(opened)
		if !isFull(err) {
			t.Error(err)
		}
	}
	if total > 6 { // three quarters of all channels are for one principal
		t.Errorf("one principal has %d channels", total)
	}
}

func TestUnknownRequests(t *testing.T) {
	r := start(t, apirig.Options{}, sshd.Limits{})
	c := r.client()
	for _, name := range []string{"tcpip-forward", "streamlocal-forward@openssh.com", "x", ""} {
		for range 500 {
			if ok, _, err := c.SendRequest(name, true, make([]byte, 100)); ok || err != nil {
				t.Fatalf("%s: %v, %v", name, ok, err)
			}
		}
	}
	for _, kind := range []string{"x11", "auth-agent@openssh.com", "direct-streamlocal@openssh.com", "tun@openssh.com",
		""} {
		var refused *ssh.OpenChannelError
		if _, _, err := c.OpenChannel(kind, []byte("/run/x")); !errors.As(err, &refused) ||
			refused.Reason != ssh.UnknownChannelType {
			t.Errorf("%s: %v", kind, err)
		}
	}
	if _, _, err := c.OpenChannel("direct-tcpip", []byte{0, 0, 0, 9}); err == nil {
		t.Error("a malformed request was accepted")
	}
	s := r.session(c)
	for _, kind := range []string{"auth-agent-req@openssh.com", "x11-req", "env", "pty-req", "exec", "subsystem", "y"} {
		if ok, err := s.SendRequest(kind, true, []byte{0xff, 0xff, 0xff, 0xff}); ok || err != nil {
			t.Errorf("%s: %v, %v", kind, ok, err)
		}
	}
	if out, err := s.Output("echo works"); string(out) != "works\n" {
		t.Errorf("%q, %v", out, err)
	}
	if ok, err := s.SendRequest("exec", true, ssh.Marshal(struct{ X string }{"echo twice"})); ok {
		t.Error("a second command was accepted", err)
	}
}

// stuckConn is a connection that stops reading when its Go channel is closed.
type stuckConn struct {
	net.Conn
	stuck chan struct{}
}

func (c *stuckConn) Read(p []byte) (int, error) {
	select {
	case <-c.stuck:
		select {}
	default:
	}
	return c.Conn.Read(p)
}

// A client loses its connection if it takes no output, does not close its side of a channel, or
// does not answer.
func TestStuckClients(t *testing.T) {
	t.Run("window", func(t *testing.T) {
		r := start(t, apirig.Options{Limits: face.Limits{Idle: time.Second}}, sshd.Limits{})
		c := r.client()
		channel, requests, err := c.OpenChannel("session", nil)
		if err != nil {
			t.Fatal(err)
		}
		go ssh.DiscardRequests(requests)
		command := struct{ X string }{"head -c 50000000 /dev/zero"}
		if ok, err := channel.SendRequest("exec", true, ssh.Marshal(command)); !ok || err != nil {
			t.Fatal(ok, err)
		}
		ended := make(chan error, 1)
		go func() { ended <- c.Wait() }()
		select {
		case <-ended:
		case <-time.After(15 * time.Second):
			t.Error("the connection stays")
		}
	})
	for name, limits := range map[string]sshd.Limits{
		"close":     {Closing: 300 * time.Millisecond},
		"keepalive": {Keepalive: 300 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, apirig.Options{}, limits)
			c, conn := r.stuckClient()
			s := r.session(c)
			if err := s.Start("sleep 0.5; echo taken by the read that has begun; sleep 0.5"); err != nil {
				t.Fatal(err)
			}
			close(conn.stuck)
			eventually(t, "the end of the connection", func() bool {
				return strings.Contains(metricsOf(r), "forkd_ssh_clients 0")
			})
		})
	}
}

// If a process does not read its input, forkd holds only a bounded amount of this input.
func TestUnreadInput(t *testing.T) {
	r := start(t, apirig.Options{}, sshd.Limits{})
	s := r.session(r.client())
	in, err := s.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start("exec sleep 100"); err != nil {
		t.Fatal(err)
	}
	var sent atomic.Int64
	go func() {
		for chunk := make([]byte, 32<<10); ; {
			n, err := in.Write(chunk)
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	}()
	time.Sleep(2 * time.Second)
	if n := sent.Load(); n < 64<<10 || n > 4<<20 {
		t.Errorf("the server has taken %d bytes", n)
	}
}

func metricsOf(r *rig) string {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, r.URL+"/metrics", nil)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+apirig.Token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(text)
}

func TestAuditAndMetrics(t *testing.T) {
	r := start(t, apirig.Options{}, sshd.Limits{})
	c := r.client()
	if err := r.session(c).Run("echo secret"); err != nil {
		t.Fatal(err)
	}
	if conn, err := c.Dial("tcp", "localhost:1"); err == nil {
		t.Fatal(conn)
	}
	c.Close()
	if c, _, err := r.dial(r.id, newKey(t)); err == nil {
		t.Fatal(c)
	}
	k := newKey(t)
	r.register(k, "default")
	for _, name := range []string{"sb-missing", "no+id+at all"} {
		if c, _, err := r.dial(name, k); err == nil {
			t.Fatal(c)
		}
	}
	want := []string{"default /login 200", "default /exec 200", "default /ports/1 502", " /login 403",
		"default /login 404", "default /login 400"}
	var got []string
	eventually(t, "the lines of the audit log", func() bool {
		text, err := os.ReadFile(r.AuditLog)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(text, []byte("secret")) {
			t.Error("the audit log has a command")
		}
		got = nil
		for line := range bytes.Lines(text) {
			var e audit.Entry
			if err := json.Unmarshal(line, &e); err != nil {
				t.Fatal(err)
			}
			if e.Method == "SSH" {
				got = append(got, fmt.Sprintf("%s %s %d", strings.TrimPrefix(e.Who, "token:"), e.Path, e.Status))
				asked := r.id
				switch e.Status {
				case http.StatusNotFound:
					asked = "sb-missing"
				case http.StatusBadRequest:
					asked = ""
				}
				if e.Remote == "" || e.RequestID == "" || e.Who != "" && (e.Sandbox != asked || e.UserAgent == "") {
					t.Errorf("%s", line)
				}
			}
		}
		return len(got) >= len(want)
	})
	slices.Sort(got) // lines of several goroutines
	slices.Sort(want)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%q, want %q", got, want)
	}
	// A refused login is counted when its process has ended.
	var text string
	eventually(t, "the metrics of refused logins", func() bool {
		text = metricsOf(r)
		return strings.Contains(text, `forkd_ssh_logins_total{result="refused"} 3`+"\n")
	})
	for _, line := range []string{`forkd_ssh_logins_total{result="ok"} 1`,
		`forkd_ssh_sessions_total{kind="exec",outcome="ok"} 1`, `forkd_ssh_sessions_total{kind="forward",outcome="failed"} 1`,
		"forkd_ssh_clients 0", "forkd_ssh_sessions 0"} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no %s in the metrics", line)
		}
	}
}
