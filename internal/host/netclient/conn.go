package netclient

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/host/process"
	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/ctlsock"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// conn is a forkd-net process with its control connection. forkd-net receives and answers requests
// in the order in which they were posted.
type conn struct {
	proc     *process.Process
	leaf     *cgroup.Leaf // nil: no limits
	ctl      *ctlsock.Conn
	attached map[string]bool // sandboxes that an earlier daemon has attached; guarded by the client's lock
	trusted  bool            // the authority was sent; guarded by the client's lock

	killed string // why the kernel killed forkd-net for its memory usage; empty: it did not; valid once ended is closed

	lost  chan struct{} // closed when forkd-net has hung up
	ended chan struct{} // closed when the process has ended, or is left to the next daemon
	left  chan struct{} // closed by leave

	wake    chan struct{} // receives a value (one is buffered) when a request was posted
	timeout time.Duration // answerTimeout, except in tests

	mu sync.Mutex
	// +checklocks:mu
	posted []request // requests that are not sent yet
	// +checklocks:mu
	sent []request // requests that are not answered yet, oldest first
	// +checklocks:mu
	since time.Time // when forkd-net began to handle the oldest request in sent
	// +checklocks:mu
	broken bool // the connection is lost, so no more requests are accepted
}

// request is one message, with a function that handles its answer.
type request struct {
	kind   netproto.Kind
	body   []byte
	file   *os.File                     // sent with the message and then closed here; may be nil
	answer func(body []byte, err error) // called once; body is only valid during the call
}

// answerTimeout is how long forkd-net may take for a request, after it has answered all earlier
// requests. Usually a request takes microseconds. A forkd-net that takes longer than the timeout
// hangs, even on an overloaded host, so it is killed and replaced.
const answerTimeout = 30 * time.Second

func newConn(proc *process.Process, leaf *cgroup.Leaf, ctl *ctlsock.Conn, timeout time.Duration) *conn {
	n := &conn{proc: proc, leaf: leaf, ctl: ctl, lost: make(chan struct{}), ended: make(chan struct{}),
		left: make(chan struct{}),
		wake: make(chan struct{}, 1), timeout: timeout}
	go n.send()
	go n.receive()
	go n.watch()
	return n
}

// post queues a request and returns at once. It takes ownership of the file.
func (n *conn) post(kind netproto.Kind, m codec.Message, file *os.File, answer func([]byte, error)) {
	var w codec.Writer
	if m != nil {
		m.Append(&w)
	}
	r := request{kind: kind, body: w.Bytes(), file: file, answer: answer}
	n.mu.Lock()
	refused := n.broken
	if !refused {
		n.posted = append(n.posted, r)
	}
	n.mu.Unlock()
	if refused {
		r.fail()
		return
	}
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// fail calls the answer function of a request that forkd-net will not answer.
func (r *request) fail() {
	r.close()
	r.answer(nil, ErrDown)
}

func (r *request) close() {
	if r.file != nil {
		_ = r.file.Close()
		r.file = nil
	}
}

type parser interface{ Parse(r *codec.Reader) error }

// call posts a request and waits for the answer. If result is not nil, call parses the answer into
// it.
func (n *conn) call(ctx context.Context, kind netproto.Kind, m codec.Message, result parser) error {
	answered := make(chan error, 1)
	n.post(kind, m, nil, func(body []byte, err error) {
		if err == nil && result != nil && ctx.Err() == nil {
			err = result.Parse(codec.NewReader(body))
		}
		answered <- err
	})
	select {
	case err := <-answered:
		return err
	case <-ctx.Done():
		return fmt.Errorf("forkd-net does not answer: %w", ctx.Err())
	}
}

// send sends posted requests until the connection is lost.
func (n *conn) send() {
	for {
		select {
		case <-n.lost:
			return
		case <-n.wake:
		}
		for {
			n.mu.Lock()
			if len(n.posted) == 0 || n.broken {
				n.mu.Unlock()
				break
			}
			r := n.posted[0]
			n.posted = n.posted[1:]
			var fds []int
			if r.file != nil {
				fds = append(fds, int(r.file.Fd()))
			}
			if len(n.sent) == 0 {
				n.since = time.Now()
			}
			n.sent = append(n.sent, request{kind: r.kind, answer: r.answer})
			n.mu.Unlock()
			err := n.ctl.Send(r.kind, r.body, fds...)
			r.close()
			if err != nil {
				n.ctl.Shutdown() // receive then returns, and ends the connection
				return
			}
		}
	}
}

// receive reads answers until the connection is lost. Then it gives an error to the callers whose
// requests have no answer.
func (n *conn) receive() {
	for {
		kind, body, fds, err := n.ctl.Receive()
		if err != nil {
			break
		}
		ctlsock.CloseAll(fds)
		n.mu.Lock()
		var r request
		if len(n.sent) > 0 {
			r, n.sent = n.sent[0], n.sent[1:]
			n.since = time.Now() // forkd-net begins to handle the next request now
		}
		n.mu.Unlock()
		if r.answer == nil {
			break // there is no request for this answer
		}
		if kind == netproto.KindError {
			e := new(netproto.Error)
			if err = e.Parse(codec.NewReader(body)); err == nil {
				err = e
			}
		}
		r.answer(body, err)
	}
	n.mu.Lock()
	n.broken = true
	waiting := append(n.sent, n.posted...)
	n.sent, n.posted = nil, nil
	n.mu.Unlock()
	_ = n.ctl.Close()
	close(n.lost)
	for _, r := range waiting {
		r.fail()
	}
}

// watch waits until the process has ended. If the process does not answer in time, watch closes the
// connection.
func (n *conn) watch() {
	exited := make(chan error, 1)
	go func() { exited <- n.proc.Wait() }()
	tick := time.NewTicker(n.timeout / 4)
	defer tick.Stop()
	defer close(n.ended)
	for {
		select {
		case <-exited:
			_, n.killed = n.leaf.Killed()
			_ = n.leaf.Remove() // if this fails, the next process's leaf replaces it
			n.ctl.Shutdown()
			return
		case <-n.left:
			return
		case <-tick.C:
			if n.hangs() {
				n.ctl.Shutdown()
			}
		}
	}
}

// hangs reports whether forkd-net has taken too long for a request.
func (n *conn) hangs() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.sent) > 0 && time.Since(n.since) > n.timeout
}

// endTimeout is how long a process may take to exit after SIGKILL.
const endTimeout = time.Minute

// end kills the process if it still runs, and waits until it has ended.
func (n *conn) end() error {
	n.ctl.Shutdown()
	if err := n.proc.Kill(); err != nil {
		return err
	}
	select {
	case <-n.ended:
		return nil
	case <-time.After(endTimeout):
		return errors.New("forkd-net has not ended after SIGKILL")
	}
}

// leave closes the connection, and lets the process continue.
func (n *conn) leave() {
	close(n.left)
	n.ctl.Shutdown()
	<-n.lost
}
