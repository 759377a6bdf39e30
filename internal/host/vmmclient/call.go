package vmmclient

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

type reply struct {
	body []byte
	err  error
}

type parser interface{ Parse(r *codec.Reader) error }

// limits are the times that a VMM may take to answer a request, or to exit. The time for an answer
// includes the wait for answers to earlier requests.
type limits struct {
	short time.Duration // limit for requests that do little work
	long  time.Duration // limit for requests that write memory to files
	// limit for the VMM to exit after it has hung up; the exit status says why it hung up
	hangUp time.Duration
	end    time.Duration // limit for the VMM to exit after SIGKILL
}

// defaultLimits are much longer than a working VMM needs, even on an emulated or heavily overloaded
// host.
var defaultLimits = limits{short: time.Minute, long: 10 * time.Minute, hangUp: 5 * time.Second, end: time.Minute}

func (l *limits) of(kind vmmproto.Kind) time.Duration {
	if kind == vmmproto.KindBranch || kind == vmmproto.KindNet { // SetNet may wait for a branch
		return l.long
	}
	return l.short
}

// call sends a request and waits for the reply. If result is not nil, call parses the reply into
// it.
func (v *VMM) call(ctx context.Context, kind vmmproto.Kind, body vmmproto.Message, fds []int, result parser) error {
	var w codec.Writer
	if body != nil {
		body.Append(&w)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, v.limits.of(kind))
	defer cancel()
	select {
	case v.turn <- struct{}{}:
	case <-v.lost:
		return v.gone()
	case <-ctx.Done():
		return v.noAnswer(ctx) // the request was not sent
	}
	answer := make(chan reply, 1)
	v.replyTo(answer)
	// The socket has room, because a VMM that has answered all earlier requests has also received
	// them.
	if err := v.ctl.SendNow(kind, w.Bytes(), fds...); err != nil {
		v.withdraw(answer)
		if errors.Is(err, unix.EAGAIN) {
			return v.condemn(errors.New("it answered requests that it has not received"))
		}
		if IsShortage(err) { // for example, VMMs of the same user may have too many descriptors in transit
			return err
		}
		return errors.Join(ErrGone, err)
	}
	select {
	case r := <-answer:
		if r.err != nil || result == nil {
			return r.err
		}
		if err := parse(result, codec.NewReader(r.body)); err != nil {
			return v.condemn(fmt.Errorf("answer of %d bytes to request %d: %w", len(r.body), kind, err))
		}
		return nil
	case <-v.lost:
		return v.gone()
	case <-ctx.Done():
		return v.noAnswer(ctx) // deliver frees v.turn when the reply arrives
	}
}

// replyTo sets the channel for the next reply.
func (v *VMM) replyTo(answer chan reply) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.answer = answer
}

// withdraw removes a request that could not be sent. If a hostile VMM has sent an answer
// nevertheless, deliver has already removed the request.
func (v *VMM) withdraw(answer chan reply) {
	v.mu.Lock()
	waiting := v.answer == answer
	if waiting {
		v.answer = nil
	}
	v.mu.Unlock()
	if waiting {
		<-v.turn
	}
}

// errUnasked reports a reply that belongs to no request.
var errUnasked = errors.New("an answer without a request")

// deliver passes a reply to the caller of the request, if the caller still waits, and permits the
// next request. If no request is in progress, deliver returns errUnasked.
func (v *VMM) deliver(r reply) error {
	v.mu.Lock()
	answer := v.answer
	v.answer = nil
	v.mu.Unlock()
	if answer == nil {
		return errUnasked
	}
	answer <- r
	<-v.turn
	return nil
}

func (v *VMM) noAnswer(ctx context.Context) error {
	return fmt.Errorf("forkd-vmm %s: %w: %w", v.id, ErrNoAnswer, ctx.Err())
}

// gone returns the error of requests to a VMM that has hung up.
func (v *VMM) gone() error {
	select {
	case <-v.done:
		return fmt.Errorf("%w: %s", ErrGone, v.Exit().Detail)
	case <-time.After(v.limits.hangUp):
		return fmt.Errorf("%w: forkd-vmm %s has hung up, kill it", ErrGone, v.id)
	}
}
