package stack

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// relay forwards data between the connection to a guest and the connection to a server until both
// have ended. It also forwards resets, and the end of each direction. A direction holds no chunk
// while it waits for bytes, but keeps its chunk while the receiver accepts nothing.
type relay struct {
	*flow
	*conn
	out   *net.TCPConn
	begun func() // called when the bytes that were read before the call of run have been sent to the server; may be nil
}

// run forwards the given bytes, which were already read from the guest, and then all further bytes.
// It returns when the flow has ended.
func (r *relay) run(sent []byte) {
	stop := context.AfterFunc(r.ctx, r.reset)
	var done sync.WaitGroup
	done.Go(func() { r.broke(r.downward()) })
	r.broke(r.upward(sent))
	done.Wait()
	r.drain()
	if stop() {
		r.ep.Close()
		_ = r.out.Close() // an error is ignored, because both sides have ended
		return
	}
	r.reset()
}

// drain is called after both sides have ended. It waits until both have also acknowledged all
// bytes. Unacknowledged bytes take memory, which would no longer be counted if the flow ended. If
// drain takes too long, Sweep resets the flow.
func (r *relay) drain() {
	for wait := time.Millisecond; r.unacknowledged(); wait = min(2*wait, time.Second) {
		select {
		case <-time.After(wait):
		case <-r.ctx.Done():
			return
		}
	}
}

// unacknowledged is called after both sides have ended. It reports whether an acknowledgement of
// the end of the data (RFC 9293 §3.3.2) is still missing from the guest or from the server. gVisor
// leaves the states Established and CloseWait only when it sends the end of the data, so a
// connection in one of these states counts as unacknowledged. Linux leaves these states when it
// queues the end.
func (r *relay) unacknowledged() bool {
	switch tcp.EndpointState(r.ep.State()) {
	case tcp.StateEstablished, tcp.StateCloseWait, tcp.StateFinWait1, tcp.StateClosing, tcp.StateLastAck:
		return true
	}
	raw, err := r.out.SyscallConn()
	if err != nil {
		return false
	}
	var info *unix.TCPInfo
	lost := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	if lost != nil || err != nil {
		return false
	}
	switch info.State {
	case unix.BPF_TCP_FIN_WAIT1, unix.BPF_TCP_CLOSING, unix.BPF_TCP_LAST_ACK:
		return true
	}
	return false
}

// broke is called after an error in either direction. It resets the flow, and records the first
// error.
func (r *relay) broke(err error) {
	if err == nil {
		return
	}
	if r.ctx.Err() == nil {
		r.fail(err)
	}
	r.cancel()
}

// reset closes both connections with a reset. It may be called more than once.
func (r *relay) reset() {
	breakOff(r.out)
	r.ep.Abort()
}

// breakOff closes a connection with a reset.
func breakOff(c *net.TCPConn) {
	_ = c.SetLinger(0) // fails only if the connection is closed
	_ = c.Close()
}

// ended is called when one side has ended, and records this.
func (r *relay) ended() {
	r.half.Store(true)
	r.touch()
}

// upward forwards data from the guest to the server.
func (r *relay) upward(sent []byte) error {
	if err := r.send(sent); err != nil {
		return err
	}
	if r.begun != nil {
		r.begun()
	}
	entry, ready := waiter.NewChannelEntry(waiter.ReadableEvents | waiter.EventErr | waiter.EventHUp)
	r.wq.EventRegister(&entry)
	defer r.wq.EventUnregister(&entry)
	pool := &r.stack.host.chunks
	for {
		chunk := pool.take(&r.stack.chunks)
		w := tcpip.SliceWriter(chunk.bytes)
		result, err := r.ep.Read(&w, tcpip.ReadOptions{})
		var failed error
		switch err.(type) {
		case nil:
			r.ep.ModerateRecvBuf(result.Count)
			failed = r.send(chunk.bytes[:result.Count])
		case *tcpip.ErrWouldBlock:
		case *tcpip.ErrClosedForReceive:
			pool.give(chunk)
			if r.ctx.Err() != nil {
				return r.ctx.Err() // the read failed because the flow was reset here
			}
			r.ended()
			return r.out.CloseWrite()
		default:
			failed = errors.New("guest: " + err.String())
		}
		pool.give(chunk)
		if failed != nil {
			return failed
		}
		if err == nil {
			continue
		}
		select {
		case <-ready:
		case <-r.ctx.Done():
			return r.ctx.Err()
		}
	}
}

// send writes bytes to the server, at the sandbox's rate.
func (r *relay) send(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	if err := r.stack.up.WaitN(r.ctx, len(p)); err != nil {
		return context.Canceled
	}
	n, err := r.out.Write(p)
	r.up.Add(uint64(n))
	r.touch()
	return err
}

// downward forwards data from the server to the guest.
func (r *relay) downward() error {
	raw, err := r.out.SyscallConn()
	if err != nil {
		return err
	}
	in := gonet.NewTCPConn(r.wq, r.ep)
	pool := &r.stack.host.chunks
	for {
		chunk, n, err := receive(raw, pool, &r.stack.chunks)
		switch {
		case errors.Is(err, io.EOF):
			r.ended()
			if err := r.ep.Shutdown(tcpip.ShutdownWrite); err != nil {
				return errors.New("guest: " + err.String())
			}
			return nil
		case err != nil:
			return err
		}
		if err = r.stack.down.WaitN(r.ctx, n); err == nil {
			n, err = in.Write(chunk.bytes[:n])
			r.down.Add(uint64(n))
			r.touch()
		} else {
			err = context.Canceled
		}
		pool.give(chunk)
		if err != nil {
			return err
		}
	}
}

// receive waits until a socket has bytes. Then it takes a chunk, and reads into the chunk. The
// parameter named in is the room that counts the chunk. If it is nil, the chunk is not counted. The
// caller must give the chunk back.
func receive(raw interface {
	Read(func(uintptr) bool) error
}, pool *chunks, in *room) (k *chunk, n int, err error) {
	lost := raw.Read(func(fd uintptr) bool {
		k = pool.take(in)
		for {
			n, err = unix.Read(int(fd), k.bytes)
			if !errors.Is(err, unix.EINTR) {
				break
			}
		}
		if err == nil && n > 0 {
			return true
		}
		pool.give(k)
		k = nil
		return !errors.Is(err, unix.EAGAIN)
	})
	switch {
	case lost != nil:
		err = lost
	case err == nil && n == 0:
		err = io.EOF
	}
	return k, n, err
}
