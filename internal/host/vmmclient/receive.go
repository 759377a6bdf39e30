package vmmclient

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/ctlsock"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// maxUnasked is how many messages a VMM may send between two answers. A working VMM sends at most
// eight: four about streams that its guest has opened after a boot, one about a full disk, two
// about ends of live branches, and one about its exit.
const maxUnasked = 16

// receive handles the VMM's messages until the connection ends. It never waits for a caller,
// because it must notice the end of a compromised VMM, whatever the VMM sends. A VMM that sends an
// invalid message is killed.
func (v *VMM) receive() {
	defer close(v.lost)
	defer close(v.conns)
	for unasked := 0; ; {
		kind, body, fds, err := v.ctl.Receive()
		if errors.Is(err, ctlsock.ErrFDsLost) && kind == vmmproto.KindConn {
			if unasked++; unasked <= maxUnasked {
				continue // the daemon has too few descriptors, so the stream is refused
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, os.ErrClosed) {
				_ = v.condemn(err)
			}
			return
		}
		if unasked++; kind == vmmproto.KindOK || kind == vmmproto.KindError {
			unasked = 0
		}
		if unasked > maxUnasked {
			v.closing(func() { ctlsock.CloseAll(fds) })
			_ = v.condemn(fmt.Errorf("it sent more than %d messages that it was not asked for", maxUnasked))
			return
		}
		if err := v.take(kind, body, fds); err != nil {
			_ = v.condemn(err)
			return
		}
	}
}

// condemn kills a VMM that has violated the protocol, because it has a defect or is compromised. It
// returns an ErrHostile with the reason, which Exit then also returns.
func (v *VMM) condemn(why error) error {
	v.mu.Lock()
	if v.broke == nil {
		v.broke = why
	}
	v.mu.Unlock()
	_ = v.proc.Kill() // fails only if the process has ended
	v.ctl.Shutdown()
	return fmt.Errorf("forkd-vmm %s: %w: %w", v.id, ErrHostile, why)
}

// take handles one message. It returns an error if no working VMM would send the message.
func (v *VMM) take(kind vmmproto.Kind, body []byte, fds []int) error {
	if kind == vmmproto.KindConn {
		return v.guestConn(body, fds)
	}
	if len(fds) > 0 {
		v.closing(func() { ctlsock.CloseAll(fds) })
		return fmt.Errorf("it sent %d descriptors with message %d, which has none", len(fds), kind)
	}
	r := codec.NewReader(body)
	var err error
	switch kind {
	case vmmproto.KindOK:
		err = v.deliver(reply{body: append([]byte(nil), body...)})
	case vmmproto.KindError:
		var e vmmproto.Error
		if err = parse(&e, r); err == nil {
			err = v.deliver(reply{err: e.Err()})
		}
	case vmmproto.KindExit:
		var exit vmmproto.Exit
		if err = parse(&exit, r); err == nil {
			v.mu.Lock()
			v.exit = vm.Exit(exit)
			v.mu.Unlock()
		}
	case vmmproto.KindBranched:
		var b vmmproto.Branched
		if err = parse(&b, r); err == nil {
			v.announce(b)
		}
	case vmmproto.KindStalled:
		if err = r.Done(); err == nil {
			select {
			case v.stalled <- struct{}{}:
			default: // the channel already has a value, so its receiver will notice
			}
		}
	default:
		err = errors.New("there is no such message from a VMM")
	}
	if err != nil {
		return fmt.Errorf("message %d of %d bytes: %w", kind, len(body), err)
	}
	return nil
}

// closeLimit is how long the close of a descriptor of a VMM may take.
const closeLimit = time.Second

// closing calls f, which closes descriptors that the VMM has sent. If f does not return in time, the
// VMM is killed. A VMM that is in epoll_wait(2) for such a file, and does not answer the page faults
// of its buffer, holds a lock that the last close of the file needs. No signal to this process ends
// that wait.
func (v *VMM) closing(f func()) {
	late := time.AfterFunc(closeLimit, func() {
		_ = v.condemn(errors.New("it holds up the close of a descriptor that it has sent"))
	})
	defer late.Stop()
	f()
}

// guestStream is a stream of the guest, whose descriptor the VMM has sent.
type guestStream struct {
	net.Conn
	v *VMM
}

// Close implements net.Conn.
func (s guestStream) Close() (err error) {
	s.v.closing(func() { err = s.Conn.Close() })
	return err
}

// parse decodes a message of a VMM. A message that is too short or too long is an error.
func parse(m parser, r *codec.Reader) error {
	if err := m.Parse(r); err != nil {
		return err
	}
	return r.Done()
}

// guestConn passes a stream that the guest has opened to the channel of Conns. If no caller
// receives the stream soon, guestConn closes it, so that the guest cannot use up the daemon's
// descriptors.
func (v *VMM) guestConn(body []byte, fds []int) error {
	r := codec.NewReader(body)
	port := r.U32()
	if err := r.Done(); err != nil || len(fds) != 1 {
		v.closing(func() { ctlsock.CloseAll(fds) })
		return fmt.Errorf("a stream of the guest in %d bytes with %d descriptors: want 4 and 1", len(body), len(fds))
	}
	if kind, err := unix.GetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_STREAM {
		v.closing(func() { ctlsock.CloseAll(fds) })
		return errors.New("a stream of the guest that is not a stream socket")
	}
	f := os.NewFile(uintptr(fds[0]), "guest stream")
	conn, err := net.FileConn(f)
	v.closing(func() { _ = f.Close() })
	if err != nil {
		return nil // the daemon has too few descriptors, so the stream is refused
	}
	select {
	case v.conns <- Conn{Port: port, Conn: guestStream{conn, v}}:
	default:
		_ = guestStream{conn, v}.Close()
	}
	return nil
}
