// Package agent is the guest side of forkd. It boots the guest's user space as PID 1 and keeps
// interpreters warm. On vsock it serves the E2B envd and code interpreter protocols, and forkd's
// control protocol. It gives each fork of the guest a new identity.
//
// It trusts every client, because only the host can reach a guest's vsock. It has no network
// listener, is never updated inside a guest, and does not supervise processes that users start.
package agent

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/guest/apply"
	"github.com/forkd/forkd/internal/guest/disk"
	"github.com/forkd/forkd/internal/guest/envd"
	"github.com/forkd/forkd/internal/guest/eval"
	"github.com/forkd/forkd/internal/guest/forkhook"
	"github.com/forkd/forkd/internal/guest/generators"
	"github.com/forkd/forkd/internal/guest/kmsg"
	"github.com/forkd/forkd/internal/guest/nic"
	"github.com/forkd/forkd/internal/guest/pid1"
	"github.com/forkd/forkd/internal/guest/reap"
	"github.com/forkd/forkd/internal/guest/trust"
	"github.com/forkd/forkd/internal/guest/userenv"
	"github.com/forkd/forkd/internal/guest/volume"
	"github.com/forkd/forkd/internal/proto/agentproto"
)

// memoryLimit is the heap size in bytes at which the agent's garbage collector starts. Below this
// size, the agent disables even periodic collections. A collection soon after a fork would write to
// much of the agent's memory, and the child would need its own copy of every written page.
const memoryLimit = 64 << 20

// maxProcs is the GOMAXPROCS of the agent. A low number saves memory, because each processor of the
// runtime has caches that every forked sandbox would copy. The number is two even on one CPU, so
// that the runtime has a spare processor. Without a spare processor, the runtime would wake another
// thread to look for work whenever a thread waits in a system call, as the thread for forks does.
const maxProcs = 2

// Main runs the agent with the given arguments and returns the exit code. As PID 1 it does not
// return, but powers the machine off.
func Main(args []string, stderr io.Writer) int {
	flags := flag.NewFlagSet("forkd-agent", flag.ContinueOnError)
	flags.SetOutput(stderr)
	dir := flags.String("listen-dir", "", "serve on unix sockets in this directory, named by port, as an ordinary process")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(memoryLimit)
	runtime.GOMAXPROCS(maxProcs)
	if *dir != "" {
		fmt.Fprintf(stderr, "forkd-agent: %v\n", serveDir(*dir, stderr))
		return 1
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(stderr, "forkd-agent: this is a guest's init; give -listen-dir to run it as an ordinary process")
		return 2
	}
	log, err := pid1.EarlyLog()
	if err == nil {
		err = serveGuest(log)
	}
	pid1.PowerOff(log, err)
	return 1
}

// sockets opens listeners by port number.
type sockets struct {
	listen func(port uint32) (net.Listener, error)
	forks  func(port uint32) (*forkPort, error)
}

// unixSockets returns listeners on files in dir, named by port.
func unixSockets(dir string) sockets {
	path := func(port uint32) string { return filepath.Join(dir, strconv.Itoa(int(port))) }
	return sockets{
		listen: func(port uint32) (net.Listener, error) { return net.Listen("unix", path(port)) },
		forks: func(port uint32) (*forkPort, error) {
			return listenForks(unix.AF_UNIX, &unix.SockaddrUnix{Name: path(port)})
		},
	}
}

// vsockSockets returns listeners on any CID, because a fork may have another CID than the guest
// that opened the listener. The listeners accept only connections of the host.
func vsockSockets() sockets {
	return sockets{
		listen: func(port uint32) (net.Listener, error) {
			l, err := vsock.ListenContextID(unix.VMADDR_CID_ANY, port, nil)
			if err != nil {
				return nil, err
			}
			return fromHost{l}, nil
		},
		forks: func(port uint32) (*forkPort, error) {
			p, err := listenForks(unix.AF_VSOCK, &unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: port})
			if err != nil {
				return nil, err
			}
			p.isPeer = isHost
			return p, nil
		},
	}
}

// serveDir runs the services as an ordinary process until one of them fails.
func serveDir(dir string, stderr io.Writer) error {
	a := newAgent(kmsg.NewPlain(stderr), reap.New(), nil)
	a.control.disk = noDisk{}
	failed, err := a.start(unixSockets(dir))
	if err != nil {
		return err
	}
	return <-failed
}

// serveGuest boots the guest, starts the services, tells the host that the guest is ready, and
// serves until a service fails.
func serveGuest(log *kmsg.Log) error {
	// The kernel protects PID 1 from signals that have no handler, but Go installs handlers that
	// exit. So the agent receives these signals and never reads them. The agent does not set them
	// to be ignored, because every process of the guest would inherit this setting.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM)
	if err := pid1.Boot(log); err != nil {
		return err
	}
	id, err := pid1.OpenIdentity(log)
	if err != nil {
		return err
	}
	if err := errors.Join(nic.Up(), nic.Resolver()); err != nil {
		log.Warnf("%v", err) // for example if the kernel has no driver for the interface
	}
	reaper := reap.NewInit()
	a := newAgent(log, reaper, id)
	a.control.trust = a.trust
	a.control.busy = agentproto.BusyFile
	if err := makeBusyFile(a.control.busy); err != nil {
		log.Warnf("no program can keep the sandbox awake: %v", err)
	}
	root := disk.New("/")
	a.tree.Dir = "/" // stays empty in an ordinary process, which applies nothing
	a.control.disk, a.tree.Hold = root, root.Hold
	a.control.volumes = volume.New()
	a.forks.flush, a.forks.quiet = unix.Sync, true
	a.forks.network = nic.OpenConnections(log)
	a.control.reset = func() error { // uses new sockets, because only the fork service may use a.forks.network
		c := nic.OpenConnections(log)
		if c == nil {
			return errors.New("reset connections: this kernel cannot")
		}
		defer c.Close()
		return c.Reset()
	}
	a.forks.hooks = forkhook.New(reaper, a.rootEnviron)
	a.forks.gens = generators.New(a.eval.Processes)
	failed, err := a.start(vsockSockets())
	if err != nil {
		return err
	}
	if err := announce(a.control.ready); err != nil {
		return err
	}
	log.Infof("ready: kernel %s, warm %v", a.control.ready.Kernel, a.control.ready.Warm)
	return <-failed
}

type agent struct {
	log     *kmsg.Log
	env     *userenv.Env
	eval    *eval.Server
	envd    *envd.Server
	tree    *apply.Tree
	control *control
	forks   *forks
	ports   *ports
}

func newAgent(log *kmsg.Log, reaper *reap.Reaper, id identity) *agent {
	env := userenv.New()
	interps := eval.New(eval.Config{Reaper: reaper, Env: env, Log: log})
	tree := &apply.Tree{}
	return &agent{
		log:     log,
		env:     env,
		eval:    interps,
		envd:    envd.New(envd.Config{Reaper: reaper, Env: env, Log: log, OnEnv: interps.SetEnv, Tree: tree}),
		tree:    tree,
		control: &control{},
		forks:   &forks{identity: id, env: env, interps: interps},
		ports:   &ports{},
	}
}

// trust adds a certificate authority, with the given certificate, for all programs that start
// later. These include programs that warm interpreters start. Environment variables that were given
// to the guest keep their values.
func (a *agent) trust(certificate string) error {
	env, err := trust.Install(certificate)
	if err != nil {
		return err
	}
	for name := range a.env.Vars() {
		delete(env, name)
	}
	a.env.Merge(env)
	return a.eval.SetEnv(env)
}

// rootEnviron returns root's environment, for fork hooks.
func (a *agent) rootEnviron() []string {
	return a.env.Environ(&userenv.User{Name: "root", Home: "/root"}, nil)
}

// start warms the interpreters and opens every port. The channel receives the error of each service
// that fails.
func (a *agent) start(open sockets) (<-chan error, error) {
	a.control.ready = agentproto.Ready{Version: agentproto.Version, Kernel: kernelRelease()}
	warm, err := a.eval.Warm()
	if err != nil {
		a.log.Warnf("%v", err)
		a.control.ready.Errors = append(a.control.ready.Errors, err.Error())
	}
	a.control.ready.Warm = warm
	services := map[uint32]func(net.Listener) error{
		agentproto.ControlPort:         a.control.serve,
		agentproto.DialPort:            a.ports.serve,
		agentproto.EnvdPort:            httpService(a.envd.Handler()),
		agentproto.CodeInterpreterPort: httpService(a.eval.Handler()),
	}
	failed := make(chan error, len(services)+1)
	for port, serve := range services {
		l, err := open.listen(port)
		if err != nil {
			return nil, fmt.Errorf("listen on port %d: %w", port, err)
		}
		go func() { failed <- fmt.Errorf("service on port %d: %w", port, serve(patient{l})) }()
	}
	p, err := open.forks(agentproto.ForkPort)
	if err != nil {
		return nil, fmt.Errorf("listen on port %d: %w", agentproto.ForkPort, err)
	}
	go func() { failed <- fmt.Errorf("service on port %d: %w", agentproto.ForkPort, a.forks.serve(p)) }()
	// Collect the garbage of start-up once, here, and not in every forked sandbox.
	debug.FreeOSMemory()
	return failed, nil
}

// headerTimeout bounds how long a client may take to send a request's header.
const headerTimeout = 30 * time.Second

func httpService(h http.Handler) func(net.Listener) error {
	return func(l net.Listener) error {
		s := &http.Server{Handler: h, ReadHeaderTimeout: headerTimeout}
		return s.Serve(l)
	}
}

// announce tells the host that the guest is ready.
func announce(ready agentproto.Ready) error {
	conn, err := vsock.Dial(agentproto.HostCID, agentproto.ReadyPort, nil)
	if err != nil {
		return fmt.Errorf("announce ready on vsock port %d: %w", agentproto.ReadyPort, err)
	}
	defer conn.Close()
	line, err := json.Marshal(ready)
	if err != nil {
		return err
	}
	if _, err := conn.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("announce ready: %w", err)
	}
	return nil
}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}
