// Package apirig serves the REST API and E2B's API to tests. It uses the real handlers over a real
// sandbox manager and store, with fake VMs. Each VM has a real agent, which is an ordinary process
// and uses the host's file system. The program test/contract/rigd serves such an API to tests in
// other languages.
//
// All traffic of the REST API is compared with the API's document; see package apitest. Real VMs
// are tested elsewhere (test/integration).
package apirig

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apitest"
	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/build"
	"github.com/forkd/forkd/internal/daemon/docker"
	"github.com/forkd/forkd/internal/daemon/e2b"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/daemon/front"
	"github.com/forkd/forkd/internal/daemon/inbound"
	"github.com/forkd/forkd/internal/daemon/mcphttp"
	"github.com/forkd/forkd/internal/daemon/metrics"
	"github.com/forkd/forkd/internal/daemon/once"
	"github.com/forkd/forkd/internal/daemon/template"
	v1 "github.com/forkd/forkd/internal/daemon/v1"
	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/admit"
	"github.com/forkd/forkd/internal/host/atrest"
	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/host/diff"
	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/helpervm"
	"github.com/forkd/forkd/internal/host/history"
	"github.com/forkd/forkd/internal/host/hub"
	"github.com/forkd/forkd/internal/host/move"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/tenancy"
	"github.com/forkd/forkd/internal/host/vault"
	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/host/volfiles"
	"github.com/forkd/forkd/internal/host/volume"
	"github.com/forkd/forkd/internal/host/workspace"
	"github.com/forkd/forkd/internal/proto/diffproto"
)

// Token is the token that the API requires.
const Token = "0123456789abcdef"

// Domain is the domain of the host names of ports.
const Domain = "sandboxes.test"

// T is the part of testing.TB that a rig needs. The program rigd also implements this interface.
type T interface {
	Helper()
	TempDir() string // returns a directory that is removed at the end
	Cleanup(func())  // called at the end, in reverse order
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Fatal(args ...any)
}

// Rig is a running API. New does not set Client, URL and Server. Start sets them.
type Rig struct {
	*client.Client
	URL      string
	Server   *httptest.Server
	Handler  http.Handler
	Docker   *docker.Server
	AuditLog string
	VMs      *vmfake.VMMs
	Store    *store.Store
	Builds   template.Config    // configuration of the builder of templates
	Plans    build.Config       // configuration of Steps
	Steps    *build.Builder     // executes the builds of templates and Dockerfiles
	Unpacks  *vmfake.VMMs       // builder VMs
	Differs  *vmfake.VMMs       // VMs that compare disks
	Filers   *vmfake.VMMs       // VMs that serve the files of volumes
	History  *history.Recorder  // takes samples only when its caller says so
	Scratch  string             // directory of the disks that builder VMs fill
	Cache    string             // image cache
	Parent   client.BakeRequest // request that makes a snapshot
	Tokens   map[string]string  // tokens of Options.Tokens, by name

	TokenFile string // file with all tokens

	SSH RunningSSH // set with Options.SSH

	agents  *agents
	images  *build.Images
	volumes *volume.Store
	moves   *move.Book
}

// VolumeQuota bounds the volumes of each owner, in bytes.
const VolumeQuota = 4 << 30

// Options configure a rig.
type Options struct {
	Agent func(dir string) *exec.Cmd  // returns a command that serves an agent on sockets in dir
	Dial  func(context.Context) error // called before every connection to an agent; may be nil
	// Private gives each guest a directory of its own. A branch saves this directory, and its forks
	// get copies of it. The agent's command gets the path of this directory in the environment
	// variable FilesEnv. False: all guests share the files of this host.
	Private bool
	Guest   sandbox.Guest // stands in for the agent of every sandbox; nil: real agents
	Limits  face.Limits
	Admit   admit.Rules

	GuestPort int          // port of guests' addresses; 0: guests have no addresses
	Domain    string       // domain of the host names of ports; empty: the constant Domain
	Tokens    []auth.Token // accepted in addition to Token

	// Id of a suspended sandbox whose record cannot be read. The rig makes the record, as if an
	// earlier daemon had left it. Empty: none.
	Damaged string

	Node      string             // name of the rig's host in a cluster; empty: none
	MoveFault func(point string) // called between the durable parts of a move's steps; may be nil

	Open bool // no token is required: every client over TCP has all rights

	Unpack      func(stream io.Reader) error // acts as the guest of builder VMs; nil: they never connect
	TrustedKeys string                       // directory of the keys that sign trusted snapshots; empty: none
	Images      []string                     // names of further images that the fake registry has

	Stopping context.Context // context that ends when the daemon stops; nil: the daemon never stops

	// Diff acts as the guest of VMs that compare disks. nil: these guests answer that the file
	// /srv/a has changed.
	Diff func(*vmfake.VMM, net.Conn)

	// Files acts as the guest of VMs that serve the files of volumes. nil: they never connect.
	Files func(*vmfake.VMM, net.Conn)

	SSH *SSH // configuration of the SSH server; nil: the rig serves no SSH

	Keyless bool // the rig has no key file, so it can make no encrypted snapshots

	NoKVM error // reason why the host cannot run VMs; nil: it can

	Unchecked bool // traffic is not compared with the document, because another program does so

	Dir     string             // directory of the rig's state, which an earlier rig may have used; empty: a temporary one
	Prepare func(*vmfake.VMMs) // called before the first VM starts; may be nil
}

func (o *Options) noKVM() error { return o.NoKVM }

// Start serves the API on a loopback address until t ends.
func Start(t T, o Options) *Rig {
	t.Helper()
	r := New(t, o)
	r.Server = httptest.NewUnstartedServer(r.Handler)
	r.Server.Config.ConnContext = face.WithConn
	r.Server.Start()
	t.Cleanup(r.Server.Close)
	t.Cleanup(r.agents.stop) // runs first: ends requests that wait for agents
	r.URL = r.Server.URL
	var err error
	if r.Client, err = client.New(r.URL, Token); err != nil {
		t.Fatal(err)
	}
	return r
}

// New returns a rig. The caller serves the rig's Handler. The rig's resources are removed when t
// ends.
func New(t T, o Options) *Rig {
	t.Helper()
	r := &Rig{agents: &agents{t: t, command: o.Agent, dial: o.Dial, running: map[*guest]bool{}}}
	dir, part := o.state(t)
	events := event.NewRing(64)
	st, crypter := openStore(t, dir, events, o.Keyless)
	counts, discard := metrics.New("test"), slog.New(slog.DiscardHandler)
	vmms, run := &vmfake.VMMs{GuestDirty: 8192}, filepath.Join(dir, "run")
	o.prepare(r, vmms, dir)
	m, err := sandbox.New(sandbox.Config{
		Store: st, VMMs: vmms, Guest: r.agents.guests(o.Guest, vmms),
		NewTop: disklayer.Format, RunDir: run, DataDir: filepath.Join(dir, "data"),
		Observer: counts, Events: events, Log: slog.New(slog.DiscardHandler), Admit: o.Admit,
		IsParent: func(tag string) bool { return r.Steps != nil && r.Steps.IsParent(tag) },
		Volumes:  r.openVolumes(t, dir), Away: r.openMoves(t, dir, &o, st, counts).Away,
	})
	if err != nil {
		t.Fatal(err)
	}
	if o.Damaged != "" {
		left := filepath.Join(dir, "data", o.Damaged)
		if err := errors.Join(os.Mkdir(left, 0o700), os.WriteFile(filepath.Join(left, "suspended.json"), []byte("{"),
			0o600)); err != nil {
			t.Fatal(err)
		}
	}
	snapshots := newHub(t, dir, run, o.TrustedKeys, st, vmms)
	r.moves.Use(m, snapshots)
	if o.Damaged != "" || o.Dir != "" {
		r.recover(t, m)
	}
	workspaces, err := workspace.Open(filepath.Join(dir, "workspaces"), m, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	r.VMs = vmms
	baker := bake.New(bake.Config{Store: st, VMMs: vmms, Guest: func(string) bake.Guest {
		return vmfake.Guest{All: vmms}
	}, RunDir: run,
		Initrd:   os.Open, // opened, but never read
		Template: "host", Accel: "kvm", Log: slog.New(slog.DiscardHandler), Admit: m.AdmitParent})
	r.observe(m, counts)
	r.TokenFile = filepath.Join(dir, "tokens")
	guard, err := r.guard(o.Tokens)
	if err != nil {
		t.Fatal(err)
	}
	if o.Open {
		guard = nil
	}
	domain, err := inbound.ParseDomain(cmp.Or(o.Domain, Domain))
	if err != nil {
		t.Fatal(err)
	}
	links, err := auth.OpenLinks(filepath.Join(dir, "links.key"))
	if err != nil {
		t.Fatal(err)
	}
	answers, err := once.Open(filepath.Join(dir, "once"))
	if err != nil {
		t.Fatal(err)
	}
	r.AuditLog = filepath.Join(dir, "audit.log")
	log, err := audit.Open(r.AuditLog)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := auth.OpenKeys(filepath.Join(dir, "tokens.key"))
	if err != nil {
		t.Fatal(err)
	}
	r.Store = st
	builder, err := r.builders(dir, &o, build.Config{Manager: m, Baker: baker, Boot: bootOf(part)})
	if err != nil {
		t.Fatal(err)
	}
	m.SetBoot(boots(baker))
	shared := face.New(face.Config{Host: tenancy.New(m, workspaces, r.volumes), Guard: guard, Audit: log,
		Answers: answers, Limits: o.Limits, Counts: counts, Requests: counts.RequestDone, Stopping: o.Stopping, Log: discard})
	r.serveSSH(t, o.SSH, dir, shared, counts)
	api := v1.New(v1.Config{Face: shared, Baker: baker, Builds: r.Steps, Images: r.images, ScratchDir: r.Scratch,
		Differ: r.differ(o.Diff, run, st), Hub: snapshots, Metrics: counts.Handler(),
		History: r.History, Version: "test", Accel: "kvm", Node: o.Node, Domain: domain, GuestPort: o.GuestPort,
		Links: links, Tried: counts.Tried, SSH: r.SSH.info(), Crypter: crypter, NoKVM: o.noKVM, Moves: r.moves,
		MCP: mcphttp.New("test", o.Limits.Keepalive, discard)})
	if !o.Unchecked {
		api = apitest.Checked(t, api)
	}
	compatible := e2b.New(e2b.Config{Face: shared, Keys: keys, Builder: builder, Tags: openTags(t, dir), Domain: domain,
		History: r.History, Files: r.volumeFiles(o.Files, run, st)})
	r.Handler = front.New(front.Config{Face: shared, V1: api, E2B: compatible, Hub: snapshots,
		Domain: domain, Links: links})
	t.Cleanup(func() { builder.Close(); m.Close(true); st.Close(); log.Close() })
	t.Cleanup(r.agents.stop)
	r.openDocker(t, shared, snapshots, dir)
	r.Parent = client.BakeRequest{Tag: "a.b", Kernel: part, Initrd: part, Rootfs: part}
	return r
}

// recover makes the rig take over the sandboxes and volumes that an earlier rig has left.
func (r *Rig) recover(t T, m *sandbox.Manager) {
	t.Helper()
	if _, err := m.Recover(); err != nil {
		t.Fatal(err)
	}
	r.volumes.Recover(m.Has)
}

// openVolumes returns the volumes in dir. An earlier rig may have left volumes there.
func (r *Rig) openVolumes(t T, dir string) *volume.Store {
	t.Helper()
	var err error
	r.volumes, err = volume.Open(volume.Config{Dir: filepath.Join(dir, "volumes"), Most: VolumeQuota,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return r.volumes
}

// openMoves returns the records of moves in dir. An earlier rig may have left some there.
func (r *Rig) openMoves(t T, dir string, o *Options, st *store.Store, counts *metrics.Metrics) *move.Book {
	t.Helper()
	var err error
	r.moves, err = move.Open(move.Config{Dir: filepath.Join(dir, "moves"), DataDir: filepath.Join(dir, "data"),
		KeyDir: dir, Node: o.Node, Store: st, Done: counts.Moved, Log: slog.New(slog.DiscardHandler), Fault: o.MoveFault})
	if err != nil {
		t.Fatal(err)
	}
	return r.moves
}

// openTags returns the tags of templates in dir. An earlier rig may have left tags there.
func openTags(t T, dir string) *e2b.Tags {
	t.Helper()
	tags, err := e2b.OpenTags(filepath.Join(dir, "template-tags"))
	if err != nil {
		t.Fatal(err)
	}
	return tags
}

// prepare applies the options of VMs. The directory of the rig is dir.
func (o *Options) prepare(r *Rig, vmms *vmfake.VMMs, dir string) {
	if o.Private {
		r.agents.files = &files{dir: filepath.Join(dir, "files"), changed: r.agents.restart}
		vmms.Files = r.agents.files
	}
	vmms.On = snapshot.NodeOf(o.Node)
	if o.Prepare != nil {
		o.Prepare(vmms)
	}
}

// observe connects the metrics and the history with the manager, which provides their figures.
func (r *Rig) observe(m *sandbox.Manager, counts *metrics.Metrics) {
	counts.SetSource(metrics.Source{Snapshots: func() int { return len(m.Snapshots().List()) }, Pool: m.PoolSize,
		PoolWanted: m.PoolWanted, Branches: m.BranchesInFlight,
		Sandboxes: func() map[string]int { return nil }})
	usage := func() (u cgroup.Usage, err error) { return u, nil } // VMs are faked
	r.History = history.New(history.Source{Manager: m, Usage: usage, Children: counts.Children}.Config())
}

// openStore returns a store, and its Crypter.
func openStore(t T, dir string, events *event.Ring, keyless bool) (*store.Store, *atrest.Crypter) {
	t.Helper()
	secret, ram := filepath.Join(dir, "secret"), filepath.Join(dir, "ram")
	err := os.WriteFile(secret, []byte(strings.Repeat("s", 32)), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if keyless {
		secret = ""
	}
	keys, err := vault.Open(vault.Config{Dir: filepath.Join(dir, "state", "keys"), RAM: ram, KeyFile: secret,
		AnyDisk: true})
	if err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(store.Config{Root: filepath.Join(dir, "state"), RAM: ram, Events: events, Vault: keys})
	if err != nil {
		t.Fatal(err)
	}
	return st, atrest.New(atrest.Config{Store: st, Vault: keys, Log: slog.New(slog.DiscardHandler)})
}

// newHub returns a Hub that never finds the disk full.
func newHub(t T, dir, run, keys string, st *store.Store, vmms vmpool.VMMs) *hub.Hub {
	t.Helper()
	h, err := hub.New(hub.Config{Store: st, Dir: hub.Dir(filepath.Join(dir, "state")),
		Memory: bake.HostMemoryMiB() << 20, Trust: hub.Trust{Keys: keys},
		Try:  vmpool.Trials{VMMs: vmms, RunDir: run}.Try,
		Room: (&admit.Rules{}).Room, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// state returns the directory of a rig, and a file in that directory. VMs boot from the file
// instead of a kernel or disk.
func (o *Options) state(t T) (dir, part string) {
	if dir = o.Dir; dir == "" {
		dir = t.TempDir()
	}
	part = filepath.Join(dir, "part")
	if _, err := os.Stat(part); err != nil { // a file of an earlier rig stays, because its snapshots refer to it
		if err := os.WriteFile(part, make([]byte, 4096), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, part
}

// differ returns a Differ whose VMs are faked. The given function acts as the guest of these VMs.
func (r *Rig) differ(guest func(*vmfake.VMM, net.Conn), run string, st *store.Store) *diff.Differ {
	if guest == nil {
		file := diffproto.Node{Type: diffproto.Regular, Mode: 0o644, Size: 4}
		guest = vmfake.Differs(&diffproto.Entry{Path: "/srv/a", Old: file, New: file, Content: true, LinesAdded: 1,
			LinesDeleted: 1, Patch: []byte("@@ -1 +1 @@\n-old\n+new\n")})
	}
	r.Differs = vmfake.NewDiffers(guest)
	return diff.New(diff.Config{Config: helpervm.Config{VMMs: r.Differs, RunDir: run, Template: "host"}, Store: st,
		Scratch: r.Scratch, Room: (&admit.Rules{}).Room,
		Initrd: func(base *os.File) (*os.File, error) { return os.Open(base.Name()) }})
}

// volumeFiles returns a Server whose VMs are faked. The given function acts as the guest of these VMs.
func (r *Rig) volumeFiles(guest func(*vmfake.VMM, net.Conn), run string, st *store.Store) *volfiles.Server {
	r.Filers = vmfake.NewFilers(guest)
	return volfiles.New(volfiles.Config{Config: helpervm.Config{VMMs: r.Filers, RunDir: run, Template: "host"}, Store: st,
		Volumes: r.volumes, Scratch: r.Scratch, Room: (&admit.Rules{}).Room,
		Initrd: func(base *os.File) (*os.File, error) { return os.Open(base.Name()) }})
}

// guard returns a guard that accepts Token and the given further tokens. It writes all tokens to
// r.TokenFile, and adds the further tokens to r.Tokens.
func (r *Rig) guard(more []auth.Token) (g *auth.Guard, err error) {
	file := fmt.Appendf(nil, "default admin sha256:%x\n", sha256.Sum256([]byte(Token)))
	r.Tokens = make(map[string]string)
	for _, token := range more {
		if file, r.Tokens[token.Name], err = auth.Add(file, token, false); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(r.TokenFile, file, 0o600); err != nil {
		return nil, err
	}
	g = &auth.Guard{}
	g.Tokens, err = auth.OpenTokens(r.TokenFile, slog.New(slog.DiscardHandler))
	return g, err
}

// Names of images in the fake registry. The second image requires a login: the user "me" with the
// password "secret".
const (
	Image        = "registry.example/image:1"
	PrivateImage = "registry.example/private:1"
)

// imageDigest is the digest of the image named Image.
const imageDigest = "sha256:1"
