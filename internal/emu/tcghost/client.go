package tcghost

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/emu/machineapi"
)

// maxAnswer bounds the bytes read from an answer.
const maxAnswer = 4 << 20

// client calls forkd-machined during one boot of the emulated host.
type client struct {
	addr, token string
	http        *http.Client
}

func newClient(addr, token string) *client {
	return &client{addr: addr, token: token, http: &http.Client{Transport: &http.Transport{
		// A connection must not be used for a second request. QEMU accepts connections before the
		// emulated host listens, so a connection may be older than the latest restart of the
		// emulated host.
		DisableKeepAlives: true,
	}}}
}

// close closes idle connections.
func (c *client) close() { c.http.CloseIdleConnections() }

// do sends a request and decodes the response into out, unless out is nil.
func (c *client) do(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("%s %s: %w", method, path, err)
		}
		body = bytes.NewReader(b)
	}
	req, err := c.request(ctx, method, path, body)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer := io.LimitReader(resp.Body, maxAnswer)
	if resp.StatusCode/100 != 2 {
		return refused(method, path, resp.StatusCode, answer)
	}
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(answer).Decode(out); err != nil {
		return fmt.Errorf("%s %s: answer: %w", method, path, err)
	}
	return nil
}

func (c *client) request(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+c.addr+path, body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	return req, nil
}

// refusedError is an error in an answer of the emulated host.
type refusedError struct {
	what   string // describes the request
	status int
	text   string
}

func (e refusedError) Error() string {
	return fmt.Sprintf("%s: status %d: %s", e.what, e.status, e.text)
}

func refused(method, path string, status int, answer io.Reader) error {
	text, err := io.ReadAll(answer)
	if err != nil {
		return fmt.Errorf("%s %s: status %d, and %w", method, path, status, err)
	}
	return refusedError{method + " " + path, status, strings.TrimSpace(string(text))}
}

// ping returns an error if the emulated host does not answer within the given time.
func (c *client) ping(ctx context.Context, limit time.Duration) (machineapi.Ping, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var p machineapi.Ping
	return p, c.do(ctx, http.MethodGet, machineapi.PathPing, nil, &p)
}

// connect returns a client of the emulated host. If the emulated host is not ready, the error wraps
// ErrNotRunning.
func (m Machine) connect() (*client, State, error) {
	s, err := m.State()
	if err != nil {
		return nil, s, err
	}
	if s.Phase != Ready {
		return nil, s, fmt.Errorf("emulated host %s is %s: %w", m.Name, s.Phase, ErrNotRunning)
	}
	token, err := m.token()
	if err != nil {
		return nil, s, err
	}
	return newClient(s.InitAddr, token), s, nil
}

// StartDaemon starts the forkd daemon in the emulated host. If a daemon is running already, it
// returns an error.
func (m Machine) StartDaemon(ctx context.Context, req machineapi.DaemonStart) (machineapi.DaemonStatus, error) {
	return m.daemon(ctx, http.MethodPut, req)
}

// DaemonStatus returns the state of the daemon in the emulated host, with the end of its log.
func (m Machine) DaemonStatus(ctx context.Context) (machineapi.DaemonStatus, error) {
	return m.daemon(ctx, http.MethodGet, nil)
}

func (m Machine) daemon(ctx context.Context, method string, in any) (machineapi.DaemonStatus, error) {
	var status machineapi.DaemonStatus
	c, _, err := m.connect()
	if err != nil {
		return status, err
	}
	defer c.close()
	return status, c.do(ctx, method, machineapi.PathDaemon, in, &status)
}

// Space returns the free bytes of directories in the emulated host.
func (m Machine) Space(ctx context.Context, dirs ...string) (machineapi.Space, error) {
	c, _, err := m.connect()
	if err != nil {
		return nil, err
	}
	defer c.close()
	var free machineapi.Space
	query := url.Values{"dir": dirs}
	return free, c.do(ctx, http.MethodGet, machineapi.PathSpace+"?"+query.Encode(), nil, &free)
}
