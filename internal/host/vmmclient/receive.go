package vmmclient

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"

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
	defer v.setStreams(nil)
	defer close(v.lost)
	defer close(v.conns)
	for unasked := 0; ; {
		kind, body, fds, err := v.ctl.Receive()
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
			ctlsock.CloseAll(fds)
			_ = v.condemn(fmt.Errorf("it sent more than %d messages that it was not asked for", maxUnasked))
			return
		}
		if err := v.take(kind, body, fds); err != nil {
			_ = v.condemn(err)
			return
		}
	}
}

// condemn kills a VMM that has violated the protocol. Such a VMM has a defect or is compromised.
// condemn returns an error that wraps ErrHostile and the reason. From then on Exit returns the
// reason too.
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

// Condemn kills a VMM that does harm to other processes. Exit then returns the reason.
func (v *VMM) Condemn(why error) { _ = v.condemn(why) }

// take handles one message. It returns an error if no working VMM would send the message.
func (v *VMM) take(kind vmmproto.Kind, body []byte, fds []int) error {
	if len(fds) > 0 {
		ctlsock.CloseAll(fds)
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
	case vmmproto.KindConn:
		var opened vmmproto.GuestConn
		if err = parse(&opened, r); err == nil {
			err = v.guestConn(opened)
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

// parse decodes a message of a VMM. A message that is too short or too long is an error.
func parse(m parser, r *codec.Reader) error {
	if err := m.Parse(r); err != nil {
		return err
	}
	return r.Done()
}

// guestStreams makes the streams that the guest may open after a boot, and returns both ends of
// each. After an error, the caller must close the returned ends. The VMM never has the daemon's
// ends. A VMM that is controlled by its guest could delay the last close of its own ends. This
// cannot happen here, because a VMM boots only once and has no guest before that.
func guestStreams() (ours []net.Conn, theirs []*os.File, err error) {
	for range vmmproto.GuestStreams {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return ours, theirs, fmt.Errorf("make a stream of the guest: %w", err)
		}
		// Set the non-blocking mode after os.NewFile. If the descriptor already had this mode when
		// os.NewFile was called, File.Fd would later make it blocking.
		theirs = append(theirs, os.NewFile(uintptr(fds[1]), "guest stream"))
		f := os.NewFile(uintptr(fds[0]), "guest stream")
		conn, err := net.FileConn(f)
		if err = errors.Join(err, f.Close(), unix.SetNonblock(fds[1], true)); err != nil {
			return ours, theirs, fmt.Errorf("make a stream of the guest: %w", err)
		}
		ours = append(ours, conn)
	}
	return ours, theirs, nil
}

// setStreams replaces the streams that the guest may open. It closes the previous streams that the
// guest has not opened. If the VMM has ended, setStreams also closes the new streams, because no
// guest will open them.
func (v *VMM) setStreams(streams []net.Conn) {
	v.mu.Lock()
	defer v.mu.Unlock()
	closeStreams(v.streams)
	v.streams = streams
	select {
	case <-v.lost:
		closeStreams(streams)
	default:
	}
}

// closeStreams closes streams of a guest, and skips nils.
func closeStreams(streams []net.Conn) {
	for _, s := range streams {
		if s != nil {
			_ = s.Close()
		}
	}
}

// guestConn passes a stream that the guest has opened to the channel of Conns. If no caller
// receives the stream soon, guestConn closes it, so that the guest cannot use up the daemon's
// descriptors.
func (v *VMM) guestConn(opened vmmproto.GuestConn) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if uint64(opened.Stream) >= uint64(len(v.streams)) || v.streams[opened.Stream] == nil {
		return fmt.Errorf("stream %d of the guest is not a free one of %d", opened.Stream, len(v.streams))
	}
	stream := v.streams[opened.Stream]
	v.streams[opened.Stream] = nil
	select {
	case v.conns <- Conn{Port: opened.Port, Conn: stream}:
	default:
		_ = stream.Close()
	}
	return nil
}
