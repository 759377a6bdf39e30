package net

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/forkd/forkd/internal/net/guesttest"
	"github.com/forkd/forkd/internal/net/nettest"
	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// Amounts of memory, in MiB.
const (
	smallestLimit = 448 // GOMEMLIMIT of forkd-net on the smallest host, see package netclient
	attackLimit   = 32  // maximum increase that 256 hostile flows may cause
)

// slowUplink limits the traffic from the host's side of a world to 1 Mbit/s. The queue is longer
// than the buffers of all sockets, so nothing is dropped.
func slowUplink(t *testing.T) {
	t.Helper()
	tc, err := exec.LookPath("tc")
	if err != nil {
		t.Skip("no program tc: install iproute2")
	}
	args := "qdisc add dev w0 root tbf rate 1mbit burst 16kb limit 256mb"
	if out, err := exec.Command(tc, strings.Fields(args)...).CombinedOutput(); err != nil {
		t.Skipf("this kernel cannot shape an uplink: tc %s: %v\n%s", args, err, out)
	}
}

// TestAttackSlowUplink lets a guest send small packets in 256 UDP flows, as fast as possible, over
// a slow network. The process does not queue the packets, and still serves another sandbox.
func TestAttackSlowUplink(t *testing.T) {
	w := nettest.New(t, web)
	path, p := startProcess(t, fmt.Sprintf("GOMEMLIMIT=%dMiB", smallestLimit), "GODEBUG=madvdontneed=1")
	d := connect(t, path)
	hostile, frames := guesttest.New(t)
	d.attach("sb-1", frames, netproto.Public())
	other, frames := guesttest.New(t)
	d.attach("sb-2", frames, netproto.Public())
	w.ListenUDP(t, web+":123")
	slowUplink(t)

	const flows, rounds = 256, 600
	most := 0
	for round := range rounds {
		for port := range uint16(flows) {
			hostile.Send(guesttest.Frame(guesttest.UDP(frame.Guest, web, 1024+port, 123, []byte{0})))
		}
		if round%50 == 0 {
			most = max(most, anonymous(t, p)>>10)
		}
	}
	for name, g := range map[string]*guesttest.Guest{"hostile": hostile, "other": other} {
		kind, _, err := g.Ping(t.Context(), netip.MustParseAddr(frame.Gateway))
		if kind != byte(header.ICMPv4EchoReply) || err != nil {
			t.Errorf("the gateway does not answer the %s guest: type %d, %v", name, kind, err)
		}
	}
	most = max(most, anonymous(t, p)>>10)
	t.Logf("%d packets of %d flows: at most %d MiB", flows*rounds, flows, most)
	if most > attackLimit {
		t.Errorf("forkd-net had %d MiB, at most %d may be", most, attackLimit)
	}
	if s := d.stats("sb-1"); s.Open != flows {
		t.Errorf("the flows are not those of the attack: %+v", s)
	}
}
