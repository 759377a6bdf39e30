package v1

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/agentclient"
)

// maxControl bounds the time of requests that a running guest answers at once.
const maxControl = 30 * time.Second

func pidOf(r *http.Request) (uint32, error) {
	pid, err := strconv.ParseUint(r.PathValue("pid"), 10, 31)
	if err != nil || pid == 0 {
		return 0, face.BadRequest("process %q: want its number", r.PathValue("pid"))
	}
	return uint32(pid), nil
}

// parseSignal accepts names such as "SIGTERM" and "TERM", in any case.
func parseSignal(name string) (syscall.Signal, error) {
	name = strings.ToUpper(name)
	if s := unix.SignalNum("SIG" + strings.TrimPrefix(name, "SIG")); s != 0 {
		return s, nil
	}
	return 0, face.BadRequest("signal: %q: want a name such as SIGTERM", name)
}

func (a *api) listProcesses(r *http.Request) (out []apiv1.Process, err error) {
	ctx, cancel := context.WithTimeout(r.Context(), maxControl)
	defer cancel()
	answer := []apiv1.Process{}
	err = a.onGuest(ctx, r, "list the processes of", func(ctx context.Context, guest *agentclient.Client) error {
		list, err := guest.Processes(ctx)
		for _, p := range list {
			answer = append(answer, apiv1.Process(p))
		}
		return err
	})
	if err != nil {
		return out, err
	}
	return answer, nil
}

// attach streams the output of a running process, over a WebSocket if the client requests one.
func (a *api) attach(w http.ResponseWriter, r *http.Request) error {
	pid, err := pidOf(r)
	if err != nil {
		return err
	}
	follow := func(ctx context.Context, guest *agentclient.Client, o output) (agentclient.ExecResult, error) {
		return guest.Attach(ctx, pid, o.started, o.data)
	}
	if r.Header.Get("Upgrade") == "" {
		return a.streamLines(w, r, attachOp, false, follow)
	}
	return a.serveSocket(w, r, attachOp, func(*socket) (follower, error) { return follow, nil })
}

const attachOp = "attach to a process of"

// onProcess calls f with the process that a request names.
func (a *api) onProcess(r *http.Request, f func(context.Context, *agentclient.Process) error) error {
	pid, err := pidOf(r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), maxControl)
	defer cancel()
	return a.onGuest(ctx, r, "reach a process of", func(ctx context.Context, guest *agentclient.Client) error {
		return f(ctx, guest.Process(pid))
	})
}

func (a *api) signalProcess(r *http.Request, req *apiv1.SignalRequest) error {
	s, err := parseSignal(req.Signal)
	if err != nil {
		return err
	}
	return a.onProcess(r, func(ctx context.Context, p *agentclient.Process) error { return p.Signal(ctx, s) })
}

func (a *api) resizeProcess(r *http.Request, req *apiv1.TTYSize) error {
	size, err := checkSize("terminal", *req)
	if err != nil {
		return err
	}
	return a.onProcess(r, func(ctx context.Context, p *agentclient.Process) error { return p.Resize(ctx, size) })
}

// processStdin sends the body to a process as it arrives. Then, if the query requests it,
// processStdin closes the input of the process.
func (a *api) processStdin(w http.ResponseWriter, r *http.Request) error {
	pid, err := pidOf(r)
	if err != nil {
		return err
	}
	last, err := boolQuery(r, "close")
	if err != nil {
		return err
	}
	t := face.NewTransfer(r.Context(), w, a.Face.Limits.Stall)
	err = a.onGuest(t.Context(), r, "reach a process of", func(ctx context.Context, guest *agentclient.Client) error {
		p := guest.Process(pid)
		if err := feed(ctx, p, t.From(r.Body), t.Moved); err != nil || !last {
			return err
		}
		err := p.CloseStdin(ctx)
		var ended *agentclient.Error
		// The process may have exited because of the input.
		if errors.As(err, &ended) && ended.Code == agentclient.CodeNotFound {
			return nil
		}
		return err
	})
	if err = t.End(err); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// inputChunk is how much input is sent to a process at once, in bytes.
const inputChunk = 128 << 10

// feed sends all data of a reader to a process, and calls moved() after each part.
func feed(ctx context.Context, p *agentclient.Process, from io.Reader, moved func()) error {
	for buf := make([]byte, inputChunk); ; {
		n, err := from.Read(buf)
		if n > 0 {
			if err := p.Input(ctx, buf[:n]); err != nil {
				return err
			}
			moved()
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
