package bake

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/agentproto"
)

// waitReady waits until the agent reports that it is ready.
func (b *bake) waitReady(ctx context.Context) (agentproto.Ready, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, b.req.Ready,
		fmt.Errorf("no announcement within %v: look at the console, or raise ready_timeout_secs", b.req.Ready))
	defer cancel()
	for {
		select {
		case <-ctx.Done():
			return agentproto.Ready{}, context.Cause(ctx)
		case c, ok := <-b.vmm.Conns():
			switch {
			case !ok:
				<-ctx.Done() // the VM is about to exit, and its exit is the cause
			case c.Port != agentproto.ReadyPort:
				c.Conn.Close() // the host has no server for other ports
			default:
				ready, err := readReady(ctx, c.Conn)
				return ready, vmpool.Cause(ctx, err)
			}
		}
	}
}

// maxReady is the maximum size of the agent's report, in bytes.
const maxReady = 64 << 10

func readReady(ctx context.Context, conn net.Conn) (agentproto.Ready, error) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var ready agentproto.Ready
	line, err := bufio.NewReader(io.LimitReader(conn, maxReady)).ReadBytes('\n')
	if err != nil && len(line) == 0 {
		return ready, fmt.Errorf("read the agent's announcement: %w", err)
	}
	if err := json.Unmarshal(line, &ready); err != nil {
		return ready, fmt.Errorf("read the agent's announcement: %w", err)
	}
	if ready.Version != agentproto.Version {
		return ready, fmt.Errorf("the agent in the initramfs speaks protocol %d, this forkd %d: build the image again",
			ready.Version, agentproto.Version)
	}
	if err := snapshot.CheckReport(ready.Kernel, ready.Warm); err != nil {
		return ready, fmt.Errorf("read the agent's announcement: %w", err)
	}
	return ready, nil
}
