package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"syscall"
	"time"

	"github.com/forkd/forkd/internal/pause"
	"github.com/forkd/forkd/internal/private"
)

// Bounds on a server's answer, in bytes.
const (
	maxAnswerHeader = 16 << 10
	maxAnswer       = 4 << 10 // the rest of a longer body is not read, and the connection is closed
)

const (
	dialTimeout  = 5 * time.Second
	maxAuthority = 1 << 20 // bytes of a file of authorities
)

// errGivenUp is the error of deliver if the server did not accept a message in time.
var errGivenUp = errors.New("given up")

// errRefused is the error of deliver if the server has refused a message, and is not merely unable
// to accept it at present.
var errRefused = errors.New("refused")

// statusError is an answer with a status other than 2xx.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("the server answered %d", int(e)) }

// refuses reports whether a status is about the message. All other statuses are about the
// credentials, the URL or the state of the server. These include the statuses of 500 and above,
// because a server that is out of order for some minutes must not lose events.
func (e statusError) refuses() bool {
	switch int(e) {
	case http.StatusUnauthorized, http.StatusNotFound, http.StatusRequestTimeout, http.StatusTooEarly,
		http.StatusTooManyRequests:
		return false
	}
	return e >= http.StatusBadRequest && e < http.StatusInternalServerError
}

// refusals is how often the server must refuse an event before deliver returns errRefused. Within
// pace.giveUp after such an event, one refusal is enough, because a client that can cause one such
// event can cause many.
const refusals = 5

// errGone is the error of deliver if the server has answered that it wants no more messages.
var errGone = errors.New("the server answered 410 Gone")

// newClient returns a client for requests to the server of a webhook. It follows no redirects: the
// operator has chosen one server, and the server must not choose another one.
func newClient(s *settings) (*http.Client, error) {
	dialer := &net.Dialer{Timeout: dialTimeout}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}, TLSHandshakeTimeout: dialTimeout,
		MaxConnsPerHost: 1, MaxIdleConns: 1, IdleConnTimeout: time.Minute,
		MaxResponseHeaderBytes: maxAnswerHeader, DisableCompression: true}
	if s.plain {
		transport.Proxy = nil
		dialer.Control = onlyLoopback
	}
	if s.CAFile != "" {
		text, _, err := private.ReadFile(s.CAFile, 0o022, maxAuthority)
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s has no certificate in PEM", s.CAFile)
		}
		transport.TLSClientConfig.RootCAs = roots
	}
	return &http.Client{Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, nil
}

// onlyLoopback refuses connections to other hosts. The name localhost could resolve to another
// address.
func onlyLoopback(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err == nil && !to.Addr().Unmap().IsLoopback() {
		err = fmt.Errorf("%s is not on this host: use https", address)
	}
	return err
}

// deliver sends a message until the server accepts it. If giveUp is not 0, deliver returns
// errGivenUp after this time, and may return errRefused earlier.
func (h *hook) deliver(ctx context.Context, m message, giveUp time.Duration) error {
	body, err := json.Marshal(m.body)
	if err != nil {
		return err
	}
	begun, delay := time.Now(), h.pace.first
	left := refusals
	if !h.refused.IsZero() && time.Since(h.refused) < giveUp {
		left = 1
	}
	for {
		wanted, err := h.send(ctx, m.id, body)
		if err != nil && ctx.Err() != nil {
			return ctx.Err()
		}
		h.counts.WebhookSent(err == nil)
		h.report(err)
		switch {
		case err == nil, errors.Is(err, errGone):
			return err
		case isRefusal(err):
			left--
		}
		switch {
		case giveUp > 0 && left == 0:
			return errRefused
		case giveUp > 0 && time.Since(begun) >= giveUp:
			return errGivenUp
		}
		// Without the random part, several daemons could send to a recovering server at the same time.
		wait := max(delay/2+rand.N(delay/2+1), min(wanted, h.pace.most))
		delay = min(2*delay, h.pace.most)
		if err := pause.For(ctx, wait); err != nil {
			return err
		}
	}
}

func isRefusal(err error) bool {
	status, ok := errors.AsType[statusError](err)
	return ok && status.refuses()
}

// report writes a line to the log when requests begin to fail, and when they succeed again.
func (h *hook) report(err error) {
	switch {
	case err != nil && !h.failing:
		h.lines.Log(h.log, slog.LevelWarn, "an event could not be delivered: it is sent again later", "error", err)
	case err == nil && h.failing:
		h.lines.Log(h.log, slog.LevelInfo, "events are delivered again")
	}
	h.failing = err != nil
}

// send sends a message once. It returns an error unless the server answers with a 2xx status. It
// also returns how long the server asks the client to wait before the next request; 0 if the server
// does not say.
func (h *hook) send(ctx context.Context, id string, body []byte) (wait time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, h.pace.timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL, bytes.NewReader(body))
	if err != nil {
		return 0, errors.New("the URL cannot be used") // err has the URL, which can be a secret
	}
	now := time.Now()
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", h.agent)
	r.Header.Set("webhook-id", id)
	r.Header.Set("webhook-timestamp", strconv.FormatInt(now.Unix(), 10))
	r.Header.Set("webhook-signature", sign(h.secrets.current(), id, now, body))
	answer, err := h.client.Do(r)
	if err != nil {
		if full := (*url.Error)(nil); errors.As(err, &full) {
			err = full.Err // full has the URL
		}
		return 0, err
	}
	defer answer.Body.Close()
	_, _ = io.CopyN(io.Discard, answer.Body, maxAnswer) // a connection is reused only after its answer has been read
	switch code := answer.StatusCode; {
	case code >= 200 && code < 300:
		return 0, nil
	case code == http.StatusGone:
		return 0, errGone
	case code >= 300 && code < 400:
		return 0, fmt.Errorf("the server answered %d: redirects are not followed, change the URL", code)
	default:
		seconds, err := strconv.ParseUint(answer.Header.Get("Retry-After"), 10, 20)
		if err == nil {
			wait = time.Duration(seconds) * time.Second
		}
		return wait, statusError(code)
	}
}
