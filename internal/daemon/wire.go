package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/cleanup"
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
	"github.com/forkd/forkd/internal/daemon/tracing"
	v1 "github.com/forkd/forkd/internal/daemon/v1"
	"github.com/forkd/forkd/internal/daemon/webhook"
	"github.com/forkd/forkd/internal/embedded"
	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/admit"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/atrest"
	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/host/diff"
	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/feeder"
	"github.com/forkd/forkd/internal/host/helpervm"
	"github.com/forkd/forkd/internal/host/history"
	"github.com/forkd/forkd/internal/host/hub"
	"github.com/forkd/forkd/internal/host/imagevm"
	"github.com/forkd/forkd/internal/host/move"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/tenancy"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/host/volfiles"
	"github.com/forkd/forkd/internal/host/volume"
	"github.com/forkd/forkd/internal/host/workspace"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/registry"
)

// wired is a complete daemon, except for its sockets.
type wired struct {
	handler http.Handler
	face    *face.Face
	docker  *docker.Server // nil if the Docker Engine API is not served
	manager *sandbox.Manager
	builder *template.Builder
	builds  *build.Builder
	images  *build.Images
	store   *store.Store
	crypter *atrest.Crypter
	hub     *hub.Hub
	audit   *audit.Log
	net     *netclient.Client
	cgroups *cgroup.Tree
	kvm     vmmclient.KVM
	traces  *tracing.Tracer
	ssh     *sshFace
	tags    *e2b.Tags
	history *history.Recorder
	counts  *metrics.Metrics
	host    *tenancy.Host
	volumes *volume.Store
	moves   *move.Book
}

// guestsOf returns the function that connects to the agent of a sandbox.
func guestsOf(o *agentclient.Owners) func(owner, vsock string) sandbox.Guest {
	return func(owner, vsock string) sandbox.Guest { return agentclient.New(o.DialUnix(owner, vsock)) }
}

// wire constructs the daemon and takes over the sandboxes and processes that an earlier daemon left
// running. Streams to ports of sandboxes end with ctx.
func wire(ctx context.Context, cfg Config, guard *auth.Guard, kvm *kvmState) (*wired, error) {
	var undo cleanup.Stack
	defer undo.Run()
	w := &wired{}
	w.kvm.Check = kvm.why
	var err error
	if cfg.AuditLog != "" {
		if w.audit, err = audit.Open(cfg.AuditLog); err != nil {
			return nil, err
		}
		undo.Add(func() { w.audit.Close() })
	}
	if w.traces, err = tracing.FromEnv(ctx, cfg.Version, os.Getenv); err != nil {
		return nil, err
	}
	var missing string
	w.cgroups, missing = openCgroups(&cfg) // processes that are started later belong to the daemon's new cgroup
	bin := filepath.Join(cfg.StateDir, "bin")
	vmm, err := install(bin, embedded.VMM)
	if err != nil {
		return nil, err
	}
	jails, err := openJails(&cfg, vmm)
	if err != nil {
		return nil, err
	}
	if w.net, err = startNet(&cfg, bin, jails, w.cgroups); err != nil {
		return nil, err
	}
	undo.Add(w.net.Close)
	runDir, dataDir := filepath.Join(cfg.RunDir, "vm"), sandboxesDir(cfg.StateDir)
	events := event.NewRing(event.DefaultSize)
	vmms := vmpool.Processes{Bin: vmm, Cgroups: w.cgroups, Jail: jails, KVM: &w.kvm, On: snapshot.NodeOf(cfg.Node)}
	counts := metrics.New(cfg.Version)
	if err := w.openStore(ctx, &cfg, events, vmms, runDir, counts); err != nil {
		return nil, err
	}
	undo.Add(func() { w.store.Close() })
	domain, err := cfg.domain()
	if err != nil {
		return nil, err
	}
	links, keys, err := openKeys(cfg.StateDir, domain)
	if err != nil {
		return nil, err
	}
	w.manager, err = sandbox.New(sandbox.Config{
		Store:    w.store,
		VMMs:     vmms,
		Net:      w.net,
		Guest:    guestsOf(&agentclient.Owners{}),
		NewTop:   disklayer.Format,
		Volumes:  w.volumes,
		Branches: cfg.Branches,
		RunDir:   runDir, DataDir: dataDir,
		PoolSize: cfg.PoolSize, PoolMost: cfg.PoolMost, Admit: cfg.Admit,
		Observer: counts, OpenPrivate: cfg.OpenPrivate,
		IsParent: func(tag string) bool { return w.builds != nil && w.builds.IsParent(tag) },
		Events:   events, Log: cfg.Log, Away: w.moves.Away,
	})
	if err != nil {
		return nil, err
	}
	n, err := w.recover(ctx, &cfg, runDir)
	if err != nil {
		return nil, err
	}
	workspaces, answers, err := w.openBooks(&cfg, dataDir)
	if err != nil {
		return nil, err
	}
	baker, err := w.startBaker(&cfg, vmms, runDir)
	if err != nil {
		return nil, err
	}
	cfg.Log.Info("ready", "snapshots", w.store.Count(), "recovered_sandboxes", n)
	w.observe(counts)
	w.host = tenancy.New(w.manager, workspaces, w.volumes)
	shared := face.New(face.Config{Host: w.host, Guard: guard, Hosts: cfg.Hosts,
		Audit: w.audit, Answers: answers, Counts: counts, Requests: counts.RequestDone, Stopping: ctx, Log: cfg.Log})
	if w.ssh, err = openSSH(&cfg, shared, counts, bin, jails, w.cgroups); err != nil {
		return nil, err
	}
	undo.Add(w.ssh.close)
	api := v1.New(v1.Config{
		Face: shared, Baker: baker, Builds: w.builds, Images: w.images, ScratchDir: scratchDir(cfg.StateDir),
		Differ: w.differ(&cfg, vmms, runDir), Hub: w.hub, Metrics: counts.Handler(), History: w.history,
		Version: cfg.Version, Accel: cfg.Accel, Node: cfg.Node, GuestPort: cfg.GuestPort, Domain: domain, Links: links,
		Missing: missing, Admission: admissionOf(cfg.Admit), NoKVM: kvm.why, MCP: mcphttp.New(cfg.Version, 0, cfg.Log),
		Tried: counts.Tried, SSH: w.ssh.info(), Crypter: w.crypter, Moves: w.moves, Traces: w.traces,
	})
	w.handler = fewHeaders(front.New(front.Config{Face: shared, V1: api, Hub: w.hub, Domain: domain, Links: links,
		E2B: w.openE2B(shared, keys, domain, w.volumeFiles(&cfg, vmms, runDir))}), shared.Audited)
	w.face = shared
	undo.Release()
	return w, nil
}

// openE2B returns the server of E2B's API.
func (w *wired) openE2B(shared *face.Face, keys *auth.Keys, domain inbound.Domain, files *volfiles.Server) *e2b.Server {
	return e2b.New(e2b.Config{Face: shared, Keys: keys, Builder: w.builder, Tags: w.tags, Domain: domain,
		History: w.history, Traces: w.traces, Files: files})
}

// openDocker prepares the Docker Engine API if the daemon is to serve it.
func (w *wired) openDocker(cfg *Config) (err error) {
	if cfg.Docker != "" {
		w.docker, err = docker.New(docker.Config{Face: w.face, Builds: w.builds, Hub: w.hub,
			Dir: filepath.Join(cfg.StateDir, "docker"), Version: cfg.Version})
	}
	return err
}

// recover takes over the sandboxes of an earlier daemon, and removes the resources of sandboxes
// that have ended. It returns how many sandboxes continue.
func (w *wired) recover(ctx context.Context, cfg *Config, runDir string) (n int, err error) {
	w.moves.Use(w.manager, w.hub)
	if n, err = w.manager.Recover(); err != nil {
		return n, err
	}
	w.volumes.Recover(w.manager.Has)
	go w.volumes.ReleaseEnded(ctx) // the start must not wait for many syncs of volumes
	w.net.Forget()                 // drops the networks of sandboxes that were not taken over
	needed := func(leaf string) bool {
		return leaf == netclient.Leaf || feeder.KeepsLeaf(w.cgroups, leaf) || exists(filepath.Join(runDir, leaf))
	}
	if err := w.cgroups.Sweep(needed); err != nil {
		cfg.Log.Warn("cgroups of an earlier daemon are left", "error", err)
	}
	return n, nil
}

// startBaker returns the baker of parents, and gives it to the template builder.
func (w *wired) startBaker(cfg *Config, vmms vmpool.VMMs, runDir string) (*bake.Baker, error) {
	baker := bake.New(bake.Config{
		Store:    w.store,
		VMMs:     vmms,
		Net:      w.net,
		Guest:    func(vsock string) bake.Guest { return agentclient.New(agentclient.DialUnix(vsock)) },
		RunDir:   runDir,
		Template: cfg.CPUTemplate,
		Accel:    cfg.Accel,
		Cmdline:  vm.Cmdline(cfg.CmdlineArgs...),
		Initrd:   func(kernel string) (*os.File, error) { return makeInitrd(kernel, embedded.Agent) },
		Log:      cfg.Log,
		Admit:    w.manager.AdmitParent,
	})
	w.manager.SetBoot(func(ctx context.Context, from, to string) error {
		_, err := baker.Bake(ctx, bake.Request{Client: auth.From(ctx).Who, Tag: to, From: from, Transient: true})
		return err
	})
	err := w.startImages(cfg, vmms, runDir)
	if err != nil {
		return nil, err
	}
	boot := func(ctx context.Context, i build.Image, report func(string)) (bake.Request, error) {
		// Without this check, a missing KVM would be noticed only after the image has been made.
		if err := w.kvm.Check(); err != nil {
			return bake.Request{}, &vmmclient.NoKVMError{Err: err}
		}
		return w.images.Boot(ctx, i, report)
	}
	w.builds, err = build.New(build.Config{Manager: w.manager, Baker: baker, Boot: boot, Image: build.FromRegistry,
		Place: w.images.Filler.Wait,
		Dir:   filepath.Join(cfg.StateDir, "build"), Log: cfg.Log})
	if err != nil {
		return nil, err
	}
	w.builder, err = template.New(template.Config{Manager: w.manager, Builds: w.builds,
		Dir: filepath.Join(cfg.StateDir, "builds"), Log: cfg.Log})
	return baker, err
}

// differ returns a Differ, which compares disks.
func (w *wired) differ(cfg *Config, vmms vmpool.VMMs, runDir string) *diff.Differ {
	return diff.New(diff.Config{Config: helperVMs(cfg, vmms, runDir), Store: w.store, Initrd: addDiff,
		Scratch: scratchDir(cfg.StateDir), Room: cfg.Admit.Room})
}

// volumeFiles returns a Server for the files of volumes.
func (w *wired) volumeFiles(cfg *Config, vmms vmpool.VMMs, runDir string) *volfiles.Server {
	return volfiles.New(volfiles.Config{Config: helperVMs(cfg, vmms, runDir), Store: w.store, Volumes: w.volumes,
		Initrd: addFiles, Scratch: scratchDir(cfg.StateDir), Room: cfg.Admit.Room})
}

// helperVMs configures VMs that work for the daemon.
func helperVMs(cfg *Config, vmms vmpool.VMMs, runDir string) helpervm.Config {
	return helpervm.Config{VMMs: vmms, RunDir: runDir, Template: cfg.CPUTemplate, Cmdline: vm.Cmdline(cfg.CmdlineArgs...)}
}

// startImages prepares the cache and the scratch directory of images that builder VMs unpack.
func (w *wired) startImages(cfg *Config, vmms vmpool.VMMs, runDir string) error {
	filler := imagevm.New(imagevm.Config{Config: helperVMs(cfg, vmms, runDir), Room: cfg.Admit.Room,
		Initrd: func(kernel string) (*os.File, error) { return makeInitrd(kernel, embedded.Unpack) }})
	w.images = &build.Images{Filler: filler, Dir: build.ImageDir(filepath.Join(cfg.StateDir, "image-cache"))}
	if err := w.images.Tidy(); err != nil {
		cfg.Log.Warn("files of unfinished images are left", "error", err)
	}
	scratch := scratchDir(cfg.StateDir)
	if err := os.RemoveAll(scratch); err != nil { // a killed daemon may have left a file here
		return err
	}
	return os.MkdirAll(scratch, 0o700)
}

// scratchDir returns the directory for the disks that builder VMs fill. The daemon removes the name
// of a disk's file as soon as the file is open.
func scratchDir(stateDir string) string { return filepath.Join(stateDir, "scratch") }

// openKeys opens the key from which tokens of sandboxes are derived. If there is a domain, it also
// opens the key that signs permissions in host names.
func openKeys(dir string, domain inbound.Domain) (links *auth.Links, keys *auth.Keys, err error) {
	if domain.IsSet() {
		if links, err = auth.OpenLinks(filepath.Join(dir, "links.key")); err != nil {
			return nil, nil, err
		}
	}
	keys, err = auth.OpenKeys(filepath.Join(dir, "tokens.key"))
	return links, keys, err
}

// openBooks opens the records of workspaces, of answers to requests, and of tags of templates.
func (w *wired) openBooks(cfg *Config, dataDir string) (*workspace.Set, *once.Book, error) {
	workspaces, err := workspace.Open(filepath.Join(dataDir, "workspaces"), w.manager, cfg.Log)
	if err != nil {
		return nil, nil, err
	}
	if w.tags, err = e2b.OpenTags(filepath.Join(cfg.StateDir, "template-tags")); err != nil {
		return nil, nil, err
	}
	answers, err := once.Open(filepath.Join(cfg.StateDir, "once"))
	return workspaces, answers, err
}

// observe connects the metrics and the history with the parts of the daemon that provide their
// figures.
func (w *wired) observe(counts *metrics.Metrics) {
	w.counts = counts
	counts.SetSource(w.gauges())
	w.history = history.New(history.Source{Manager: w.manager, Usage: w.cgroups.Usage, Children: counts.Children}.Config())
}

// follow returns all events of this host for a webhook. It begins at a place that does not exist, so
// the webhook learns that it may have missed events of an earlier daemon.
func (w *wired) follow() webhook.Events {
	return w.host.For(owner.Owner{Name: owner.Anyone}).Events("none")
}

// gauges returns the metrics that are computed when they are requested.
func (w *wired) gauges() metrics.Source {
	return metrics.Source{
		Snapshots:  w.store.Count,
		Pool:       w.manager.PoolSize,
		PoolWanted: w.manager.PoolWanted,
		Branches:   w.manager.BranchesInFlight,
		Sandboxes: func() map[string]int {
			states := make(map[string]int)
			for _, s := range w.manager.List() {
				states[s.State.String()]++
			}
			return states
		},
		Net: func() (metrics.Net, bool) {
			ctx, cancel := context.WithTimeout(context.Background(), netStatsTimeout)
			defer cancel()
			totals, err := w.net.Totals(ctx)
			return metrics.Net{Restarts: w.net.Restarts(), Totals: totals}, err == nil
		},
		Usage: func() (cgroup.Usage, bool) {
			use, err := w.cgroups.Usage()
			return use, err == nil
		},
	}
}

// netStatsTimeout bounds the time that forkd-net may take to return its metrics. After this time,
// the metrics of forkd-net are omitted.
const netStatsTimeout = 5 * time.Second

// openStore opens the store, the hub and the volumes, and logs the defects of the store's snapshots.
func (w *wired) openStore(ctx context.Context, cfg *Config, events *event.Ring, vmms vmpool.Processes, runDir string,
	counts *metrics.Metrics) (err error) {
	feed, err := install(filepath.Dir(vmms.Bin), embedded.Feed)
	if err != nil {
		return err
	}
	trust, err := cfg.trust()
	if err != nil {
		return err
	}
	keys, err := openVault(cfg)
	if err != nil {
		return err
	}
	w.store, err = store.Open(store.Config{Root: cfg.StateDir, RAM: cfg.RAMDir, Events: events, Vault: keys})
	if err != nil {
		return err
	}
	w.crypter = atrest.New(atrest.Config{Store: w.store, Vault: keys, Log: cfg.Log})
	rehearser := helpervm.Rehearser{VMMs: vmms, RunDir: runDir,
		Guest: func(vsock string) helpervm.Guest { return agentclient.New(agentclient.DialUnix(vsock)) }}
	w.hub, err = hub.New(hub.Config{Store: w.store, Dir: hub.Dir(cfg.StateDir), Memory: bake.HostMemoryMiB() << 20,
		Try: vmpool.Trials{VMMs: vmms, RunDir: runDir}.Try, Rehearse: rehearser.Run, Trust: trust, Room: cfg.Admit.Room,
		Reserve: cfg.Admit.DiskReserve, Certs: registry.CertsDir, Feeder: &feeder.Program{Bin: feed, Jail: vmms.Jail,
			Cgroups: w.cgroups}, Counts: counts,
		LazyTimeout: cfg.LazyTimeout, Log: cfg.Log, Stopping: ctx})
	if err != nil {
		return errors.Join(err, w.store.Close())
	}
	w.volumes, err = volume.Open(volume.Config{Dir: filepath.Join(cfg.StateDir, "volumes"),
		Most: cfg.MaxVolumesGiB << 30, Room: cfg.Admit.RoomForFiles, Log: cfg.Log})
	if err != nil {
		return errors.Join(err, w.store.Close())
	}
	w.moves, err = move.Open(move.Config{Dir: filepath.Join(cfg.StateDir, "moves"), Node: cfg.Node,
		DataDir: sandboxesDir(cfg.StateDir), KeyDir: cfg.StateDir, Store: w.store, Done: counts.Moved, Log: cfg.Log})
	if err != nil {
		return errors.Join(err, w.store.Close())
	}
	for _, info := range w.store.List() {
		if info.Damage != "" {
			cfg.Log.Error("a snapshot cannot be used", "reason", info.Damage)
		}
	}
	return nil
}

// sandboxesDir returns the data directory of sandboxes.
func sandboxesDir(stateDir string) string { return filepath.Join(stateDir, "sandboxes") }

func admissionOf(a admit.Rules) apiv1.Admission {
	return apiv1.Admission{MaxSandboxes: a.MaxSandboxes, VCPUOvercommit: a.VCPUsPerCPU,
		MemoryReserveMiB: a.MemoryReserve >> 20, DiskReserveMiB: a.DiskReserve >> 20}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// reopen reopens the logs on each signal until ctx ends.
func (w *wired) reopen(ctx context.Context, asked <-chan os.Signal, log *slog.Logger) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-asked:
		}
		// If reopening fails, the daemon continues to write to the old file.
		if err := errors.Join(w.audit.Reopen(), w.net.ReopenLog()); err != nil {
			log.Error("SIGHUP", "error", err)
		}
	}
}

// close closes all parts: the Docker server first, then the builder. Even if closing one part
// panics, the other parts are closed. This matters most for the store, because data that is only in
// RAM is written to disk when the store is closed.
func (w *wired) close(kill bool) {
	defer func() { _ = w.traces.Close() }() // a collector that does not answer must not delay the stop
	defer w.audit.Close()
	defer w.store.Close()
	defer w.net.Close()
	defer w.cgroups.Close()
	defer func() { _ = w.kvm.Close() }()
	defer w.manager.Close(kill)
	defer w.builder.Close()
	if w.docker != nil {
		w.docker.Close()
	}
}
