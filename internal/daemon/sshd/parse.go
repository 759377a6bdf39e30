package sshd

import (
	"math"
	"regexp"
	"strings"
	"syscall"

	"golang.org/x/crypto/ssh"

	"github.com/forkd/forkd/internal/host/agentclient"
)

// Bounds of the environment of a session: the number of variables, and their size in bytes.
const (
	maxEnv      = 64
	maxEnvBytes = 32 << 10 // bytes of all names and values
)

var (
	envForm  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
	termForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$`)
)

// environment holds the variables that a client has set for a session.
type environment struct {
	vars  map[string]string
	bytes int
}

// set adds the variable of a request (RFC 4254, section 6.4), and reports whether the variable is
// valid and there is room for it.
func (e *environment) set(payload []byte) bool {
	var m struct{ Name, Value string }
	if ssh.Unmarshal(payload, &m) != nil || !envForm.MatchString(m.Name) || strings.ContainsRune(m.Value, 0) {
		return false
	}
	size := len(m.Name) + len(m.Value)
	if len(e.vars) >= maxEnv || e.bytes+size > maxEnvBytes {
		return false
	}
	if e.vars == nil {
		e.vars = map[string]string{}
	}
	e.vars[m.Name] = m.Value
	e.bytes += size
	return true
}

// setTerm sets the type of the terminal.
func (e *environment) setTerm(term string) {
	if e.vars == nil {
		e.vars = map[string]string{}
	}
	e.vars["TERM"] = term
}

// parsePTY reads the request for a terminal (RFC 4254, section 6.2). The modes of the client's
// terminal are not used.
func parsePTY(payload []byte) (term string, size agentclient.Size, ok bool) {
	var m struct {
		Term                      string
		Cols, Rows, Width, Height uint32
		Modes                     string
	}
	if ssh.Unmarshal(payload, &m) != nil {
		return "", size, false
	}
	if !termForm.MatchString(m.Term) {
		m.Term = defaultTerm
	}
	size, ok = sizeOf(m.Cols, m.Rows)
	return m.Term, size, ok
}

// defaultTerm is the terminal type for clients that name none.
const defaultTerm = "xterm-256color"

// parseWindow reads a change of the terminal's size (RFC 4254, section 6.7).
func parseWindow(payload []byte) (size agentclient.Size, ok bool) {
	var m struct{ Cols, Rows, Width, Height uint32 }
	if ssh.Unmarshal(payload, &m) != nil {
		return size, false
	}
	return sizeOf(m.Cols, m.Rows)
}

func sizeOf(cols, rows uint32) (size agentclient.Size, ok bool) {
	if cols > math.MaxUint16 || rows > math.MaxUint16 {
		return size, false
	}
	return agentclient.Size{Cols: uint16(cols), Rows: uint16(rows)}, true
}

// parseStart reads a request for a process.
func parseStart(kind string, payload []byte) (st start, ok bool) {
	if kind == "shell" {
		return start{"shell", shellArgs("")}, true
	}
	text, ok := parseText(payload)
	switch {
	case kind == "exec":
		return start{"exec", shellArgs(text)}, ok && text != ""
	case text == "sftp":
		return start{"sftp", nil}, ok
	}
	return start{}, false
}

// parseText reads the command of exec, or the name of a subsystem (RFC 4254, section 6.5).
func parseText(payload []byte) (text string, ok bool) {
	var m struct{ Text string }
	if ssh.Unmarshal(payload, &m) != nil || strings.ContainsRune(m.Text, 0) {
		return "", false
	}
	return m.Text, true
}

// signals are the signals of RFC 4254, section 6.10.
var signals = map[ssh.Signal]syscall.Signal{
	ssh.SIGABRT: syscall.SIGABRT, ssh.SIGALRM: syscall.SIGALRM, ssh.SIGFPE: syscall.SIGFPE, ssh.SIGHUP: syscall.SIGHUP,
	ssh.SIGILL: syscall.SIGILL, ssh.SIGINT: syscall.SIGINT, ssh.SIGKILL: syscall.SIGKILL, ssh.SIGPIPE: syscall.SIGPIPE,
	ssh.SIGQUIT: syscall.SIGQUIT, ssh.SIGSEGV: syscall.SIGSEGV, ssh.SIGTERM: syscall.SIGTERM,
	ssh.SIGUSR1: syscall.SIGUSR1, ssh.SIGUSR2: syscall.SIGUSR2,
}

// parseSignal reads a signal for the process of a session.
func parseSignal(payload []byte) (signal syscall.Signal, ok bool) {
	text, ok := parseText(payload)
	if !ok {
		return 0, false
	}
	signal, ok = signals[ssh.Signal(text)]
	return signal, ok
}

// signalName returns the name of a signal in SSH, such as "KILL". A signal without a name in SSH
// gets a name that ends with @forkd.
func signalName(signal syscall.Signal) string {
	for name, s := range signals {
		if s == signal {
			return string(name)
		}
	}
	return "OTHER@forkd"
}
