// Command net compares forkd-net with other network stacks in user space. It measures throughput,
// the time of a request and of a new connection, and the memory per sandbox.
//
// In every row, the client uses the Linux network stack of a namespace that has only the interface
// of the peer. The server is a process of the host, reached over the host's loopback interface. So
// the rows differ only in the peer. A real sandbox has a guest kernel and a VMM instead of the
// namespace. The cost of the guest kernel and the VMM is higher than the cost of the peers, and is
// not measured here.
//
//	client ── Linux ── tap ── this process ── frame socket ── forkd-net ──┐
//	client ── Linux ── tap ── pasta, or slirp4netns ──────────────────────┼── loopback ── server
//	client ── loopback ──────────────────────────────────────────────────┘
//
// The command runs in its own namespaces. It needs the program ip, and a kernel that permits user
// namespaces. If a peer is not installed, its row is empty. Tables go to standard output, progress
// to standard error, and all figures as JSON to the file -o. scripts/bench runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"os"
	"time"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/bench/internal/report"
	"github.com/forkd/forkd/internal/cleanup"
)

// options are the flags.
type options struct {
	rounds    int
	each      time.Duration
	sandboxes int
}

// bench is one run of this program.
type bench struct {
	*lab.Program
	opt options
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == clientArg {
		clientMain()
	}
	if code, again := enterNamespace(); again {
		os.Exit(code)
	}
	b := &bench{Program: lab.NewProgram("net", 5*time.Minute, "no new round begins")}
	flag.IntVar(&b.opt.rounds, "rounds", 5, "how often each peer has its turn")
	flag.DurationVar(&b.opt.each, "each", time.Second,
		"how long each throughput, and the requests, are measured in a round")
	flag.IntVar(&b.opt.sandboxes, "sandboxes", 200, "for how many sandboxes the memory is measured")
	b.Main(b.opt.check, b.measure)
}

func (o *options) check() error {
	if o.rounds < 1 || o.each < 10*time.Millisecond || o.sandboxes < 1 || o.sandboxes > 10000 {
		return errors.New("-rounds wants 1 or more, -each 10ms or more, -sandboxes 1 to 10000")
	}
	return nil
}

func (b *bench) measure(ctx context.Context) (*report.Report, error) {
	var undo cleanup.Stack
	defer undo.Run()
	host, err := lab.Host()
	if err != nil && !errors.Is(err, lab.ErrUnfit) { // this program runs no VM, so ErrUnfit does not matter
		return nil, err
	}
	if err := makeWorld(ctx); err != nil {
		return nil, err
	}
	port, err := serve()
	if err != nil {
		return nil, err
	}
	b.Progress("memory of %d sandboxes", b.opt.sandboxes)
	m, err := measureMemory(ctx, b.opt.sandboxes)
	if err != nil {
		return nil, err
	}
	peers, err := startPeers(ctx, port, &undo)
	if err != nil {
		return nil, err
	}
	err = b.Rounds(b.opt.rounds, func() error {
		for _, p := range peers {
			if err := p.round(b.opt.each); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	r := b.Report(host)
	r.Tables = append(r.Tables, peersTable(peers), m.table())
	return r, nil
}
