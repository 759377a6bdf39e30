// Package agent05 serves the protocol of forkd 0.5's agent, which listened on TCP port 8888 of a
// guest. Published clients still use this protocol: a client connects, sends one line of JSON, and
// receives one line as the answer, and then the connection ends.
//
//	{"action": "ping"}                             {"pong", "warmup_ready", "numpy_version", "agent_lang", "pid"}
//	{"action": "exec", "args", "timeout": 30}      {"stdout", "stderr", "exit_code"}, or {"error"}
//	{"action": "eval", "code"}                     {"result", "exit_code"}, or {"error", "traceback", "exit_code"}
//
// The protocol has no token, so the users of the package decide which connections are served. The
// Guest carries out the actions.
package agent05

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
)

// DefaultAddr is the address to which clients connect if none is configured.
const DefaultAddr = "10.42.0.2:8888"

// Port is the port of the old agent in a guest.
const Port = 8888

// Bounds on the resources that a client can hold.
const (
	maxLine  = 2 << 20          // bytes of a request
	maxConns = 128              // connections at the same time; the old agent had the same backlog
	lineTime = 30 * time.Second // time to send a request, or to receive an answer
	maxExec  = time.Hour        // like the limit of the REST API
)

// Guest is the sandbox for which a Server answers.
type Guest interface {
	Ping(context.Context) (apiv1.Pong, error)
	Exec(context.Context, apiv1.ExecRequest) (apiv1.ExecResult, error)
	Eval(context.Context, apiv1.EvalRequest) (apiv1.EvalResult, error)
}

// Addr returns the loopback address of a sandbox for clients on this host. The address is derived
// from the id, so two sandboxes can have the same address. Among a thousand sandboxes, the
// probability that any two have the same address is 3 %.
func Addr(id string, port int) string {
	h := fnv.New32a()
	h.Write([]byte(id))
	n := h.Sum32()
	// Avoid a last byte of 0 or 255. Also avoid 127.0.x.y, which hosts use for their own names and
	// resolvers.
	ip := net.IPv4(127, byte(1+n%255), byte(n/255), byte(1+n/255/256%254))
	return net.JoinHostPort(ip.String(), strconv.Itoa(port))
}

// Serve answers connections on l until ctx ends. Then it closes l and waits for running requests.
// Serve calls of(conn) to find the server for a connection. If the result is nil, Serve closes the
// connection.
func Serve(ctx context.Context, l net.Listener, of func(net.Conn) *Server) error {
	ctx, cancel := context.WithCancel(ctx)
	var conns sync.WaitGroup
	defer conns.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	places := make(chan struct{}, maxConns)
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("serve the agent's protocol of forkd 0.5: %w", err)
		}
		select {
		case places <- struct{}{}:
		default:
			conn.Close()
			continue
		}
		conns.Go(func() {
			defer func() { <-places }()
			defer conn.Close()
			if s := of(conn); s != nil {
				s.answer(ctx, conn)
			}
		})
	}
}

// Server answers the requests of clients for one sandbox.
type Server struct {
	guest Guest

	mu sync.Mutex
	// +checklocks:mu
	numpy *string // version that the interpreter has loaded, empty for none; nil: not asked yet
}

// New returns the server for a guest.
func New(g Guest) *Server { return &Server{guest: g} }

// request is a request for one of the three actions.
type request struct {
	Action  string   `json:"action"`
	Args    []string `json:"args"`
	Timeout float64  `json:"timeout"` // seconds; 0 means 30
	Code    string   `json:"code"`
}

type fault struct {
	Error     string `json:"error"`
	Traceback string `json:"traceback,omitempty"`
	ExitCode  int    `json:"exit_code"`
}

// answer serves one connection. Clients close their sending side of the connection after the
// request. answer() ignores that.
func (s *Server) answer(ctx context.Context, conn net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	_ = conn.SetDeadline(time.Now().Add(lineTime)) // if this fails, reading fails too
	r := bufio.NewReader(io.LimitReader(conn, maxLine))
	line, err := r.ReadBytes('\n')
	if err != nil && !(errors.Is(err, io.EOF) && 0 < len(line) && len(line) < maxLine) {
		return
	}
	var req request
	var reply any
	if err := json.Unmarshal(line, &req); err != nil {
		reply = fault{Error: "the request is not a line of JSON: " + err.Error(), ExitCode: 1}
	} else {
		reply = s.do(ctx, &req)
	}
	p, err := json.Marshal(reply)
	if err != nil {
		return
	}
	_ = conn.SetDeadline(time.Now().Add(lineTime))
	_, _ = conn.Write(append(p, '\n')) // fails only if the client has left
}

func (s *Server) do(ctx context.Context, req *request) any {
	switch req.Action {
	case "ping":
		return s.ping(ctx)
	case "exec":
		return s.exec(ctx, req)
	case "eval":
		return s.eval(ctx, req)
	}
	return fault{Error: fmt.Sprintf("action %q: want ping, exec or eval", req.Action), ExitCode: 1}
}

func (s *Server) ping(ctx context.Context) any {
	p, err := s.guest.Ping(ctx)
	if err != nil {
		return fault{Error: err.Error(), ExitCode: 1}
	}
	python := slices.Contains(p.Warm, "python")
	reply := struct {
		Pong        bool    `json:"pong"`
		WarmupReady bool    `json:"warmup_ready"`
		Numpy       *string `json:"numpy_version"`
		Lang        string  `json:"agent_lang"`
		PID         int     `json:"pid"`
	}{Pong: p.Pong, WarmupReady: p.WarmupReady, PID: 1, Lang: "none"}
	if len(p.Warm) > 0 {
		reply.Lang = p.Warm[0]
	}
	if python {
		reply.Lang = "python"
		if v := s.numpyVersion(ctx); v != "" {
			reply.Numpy = &v
		}
	}
	return reply
}

// numpyVersion returns the version of numpy that the interpreter has loaded. If the interpreter
// gives no answer, the next ping asks again. Asking never makes the interpreter load numpy.
func (s *Server) numpyVersion(ctx context.Context) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.numpy != nil {
		return *s.numpy
	}
	r, err := s.guest.Eval(ctx, apiv1.EvalRequest{
		Code: `print(getattr(__import__("sys").modules.get("numpy"), "__version__", ""), end="")`})
	if err != nil {
		return "" // asked again at the next ping
	}
	s.numpy = &r.Stdout
	return r.Stdout
}

func (s *Server) exec(ctx context.Context, req *request) any {
	if len(req.Args) == 0 {
		return fault{Error: "args: empty", ExitCode: 1}
	}
	if !(req.Timeout >= 0 && req.Timeout <= maxExec.Seconds()) {
		return fault{Error: fmt.Sprintf("timeout: %g: want 0 to %g seconds", req.Timeout, maxExec.Seconds()), ExitCode: 1}
	}
	r, err := s.guest.Exec(ctx, apiv1.ExecRequest{Args: req.Args, TimeoutSecs: req.Timeout})
	switch {
	case err != nil:
		return fault{Error: err.Error(), ExitCode: 1}
	case r.TimedOut:
		return fault{Error: fmt.Sprintf("command timed out after %g s", cmp.Or(req.Timeout, 30)), ExitCode: r.ExitCode}
	case r.Outcome != "exited" && r.Outcome != "signaled":
		return fault{Error: r.Error, ExitCode: r.ExitCode}
	}
	return struct {
		Stdout   string `json:"stdout"`
		Stderr   string `json:"stderr"`
		ExitCode int    `json:"exit_code"`
	}{r.Stdout, r.Stderr, r.ExitCode}
}

func (s *Server) eval(ctx context.Context, req *request) any {
	r, err := s.guest.Eval(ctx, apiv1.EvalRequest{Code: req.Code})
	switch {
	case err != nil:
		return fault{Error: err.Error(), ExitCode: 1}
	case r.Error != "":
		return fault{Error: r.Error, Traceback: r.Traceback, ExitCode: r.ExitCode}
	}
	result := "None" // the old agent sent this for an expression without a value
	if r.Result != nil {
		result = *r.Result
	}
	return struct {
		Result   string `json:"result"`
		ExitCode int    `json:"exit_code"`
	}{result, r.ExitCode}
}
