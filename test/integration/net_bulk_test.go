package integration_test

import (
	"fmt"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/vmtest"
)

// offloadCode is the code in the guest of TestOffloads. It reads the driver's count of frames, in
// which a long frame counts as one.
const offloadCode = `
import random
def counted(direction):
    read = lambda what: int(open("/sys/class/net/eth0/statistics/%s_%s" % (direction, what)).read())
    return read("bytes"), read("packets")
def mean(direction, move):
    before = counted(direction)
    moved = move()
    after = counted(direction)
    return moved, (after[0] - before[0]) // (after[1] - before[1])
def upload(host, port, size):
    data = random.Random(7).randbytes(size)
    s = socket.create_connection((host, port), timeout=200)
    s.sendall(data)
    s.shutdown(socket.SHUT_WR)
    return s.makefile().read() == hashlib.sha256(data).hexdigest()
`

// TestOffloads checks that bulk transfers in both directions use frames longer than the MTU. Such
// frames save the guest and forkd-net most of the work per frame. Every byte must arrive.
func TestOffloads(t *testing.T) {
	const size = 1 << 20 // small, because each frame takes long on an emulated CPU
	d := load(t).start(t)
	file, digest := serveFile(t, size), serveDigest(t)
	box := d.online(t, 1, client.Network{Mode: "allow", Allow: []string{file.address, digest.address}})[0]
	if e, err := d.Eval(d.ctx(t, bakeLimit), box.ID, client.EvalRequest{Code: offloadCode,
		TimeoutSecs: 120}); err != nil || e.Error != "" {
		t.Fatalf("%+v, %v", e, err)
	}
	const most = frame.MTU + 14 // length of a frame without segmentation offload: the MTU and the Ethernet header
	for direction, c := range map[string]struct{ move, want string }{
		"rx": {fmt.Sprintf("fetch(%s)", file.of()), file.sum},
		"tx": {fmt.Sprintf("upload(%s, %d)", digest.of(), size), "True"},
	} {
		var moved string
		var mean int
		got := d.call(t, box.ID, "'%%s %%d' %% mean(%q, lambda: %s)", direction, c.move)
		if _, err := fmt.Sscan(got, &moved, &mean); err != nil {
			t.Fatalf("%s: %v", got, err)
		}
		t.Logf("%s: frames of %d bytes on average", direction, mean)
		if moved != c.want {
			t.Errorf("%s: %s, want %s", c.move, moved, c.want)
		}
		if mean <= most {
			t.Errorf("%s: frames have %d bytes on average; without segmentation offload they have up to %d", direction, mean,
				most)
		}
	}
	d.kill(t, box)
}

// Number and size of the concurrent downloads. An emulated CPU, which shares its time with other
// programs, has fewer and smaller ones. Most of its time goes into the start of the sandboxes.
const (
	downloads, emulatedDownloads     = 50, 25
	downloadMiB, emulatedDownloadMiB = 100, 2
)

// TestDownloadsAtOnce lets every child of a fork download at the same time. Every byte must arrive.
func TestDownloadsAtOnce(t *testing.T) {
	d := load(t).start(t)
	n, mib := downloads, downloadMiB
	if vmtest.Emulated() {
		n, mib = emulatedDownloads, emulatedDownloadMiB
	}
	n, mib = envInt(t, "FORKD_DOWNLOADS", n), envInt(t, "FORKD_DOWNLOAD_MIB", mib)
	file := serveFileAtOnce(t, mib<<20, n)
	boxes := d.online(t, n, client.Network{Mode: "allow", Allow: []string{file.address}})
	d.each(t, boxes, func(s client.Sandbox) {
		code := fmt.Sprintf("begin(%s, 600)", file.of()) // the server answers when all downloads have begun
		if e, err := d.Eval(d.ctx(t, bakeLimit), s.ID, client.EvalRequest{Code: code, TimeoutSecs: 120}); err != nil ||
			e.Error != "" {
			t.Errorf("%s: %+v, %v", code, e, err)
		}
	})
	if t.Failed() {
		return // without this, other sandboxes would wait in fetched() for the download that did not begin
	}
	d.each(t, boxes, func(s client.Sandbox) {
		if got := d.call(t, s.ID, "fetched()"); got != file.sum {
			t.Errorf("sandbox %s: %s", s.ID, got)
		}
	})
	if n := d.metric(t, "forkd_net_restarts_total"); n != 0 {
		t.Errorf("forkd-net was started again %v times", n)
	}
	d.kill(t, boxes...)
}
