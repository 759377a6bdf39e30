// Command rigd is a fake daemon for the contract suite of the SDKs. Its API has the real handlers,
// over fake VMs. Every sandbox has a real agent, which is a process of this host. rigd is used only
// in tests.
//
// When rigd is ready, it prints one line of JSON (see type ready). When stdin ends, or on SIGINT or
// SIGTERM, rigd removes everything that it has made, and exits. POST /_rig/faults causes faults,
// and GET /_rig/state reports the requests so far. Neither needs a token.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/guest/agent"
)

// agentArg is the argument with which this program runs as the agent of a guest. The next argument
// is the directory of the agent's sockets.
const agentArg = "-serve-agent"

// ready is the line that the program prints when it is ready.
type ready struct {
	URL      string `json:"url"`      // on loopback
	Socket   string `json:"socket"`   // unix:///path of a socket with the same API, which needs no token
	Docker   string `json:"docker"`   // unix:///path of a socket with the Docker Engine API
	Token    string `json:"token"`    // has all rights
	Snapshot string `json:"snapshot"` // tag of an existing snapshot
	Tmp      string `json:"tmp"`      // directory for files of tests; all sandboxes see it
	File     string `json:"file"`     // file on the host, accepted as kernel, initrd and disk of a parent
	Tokens   string `json:"tokens"`   // token file
	PID      int    `json:"pid"`
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == agentArg {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // stdin ends when the program that started the agent exits
			os.Exit(0)
		}()
		// Orphaned processes of a sandbox become children of its agent, and are killed with it.
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			fmt.Fprintln(os.Stderr, "rigd:", err)
			os.Exit(1)
		}
		if own := os.Getenv(apirig.FilesEnv); own != "" {
			if err := mountFiles(own); err != nil {
				fmt.Fprintln(os.Stderr, "rigd:", err)
				os.Exit(1)
			}
		}
		os.Exit(agent.Main([]string{"-listen-dir", os.Args[2]}, os.Stderr))
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "rigd:", err)
		os.Exit(1)
	}
}

func run() error {
	bind := flag.String("bind", "127.0.0.1:0", "loopback address to serve on")
	keepalive := flag.Duration("keepalive", 0, "how often silent streams say something; 0: as the daemon's default")
	checked := flag.Bool("checked", true, "fail (exit code 1) if traffic is not as api/openapi.yaml has it")
	domain := flag.String("domain", "", "URL whose host names lead to sandboxes; empty: apirig's default")
	open := flag.Bool("open", false, "demand no token")
	images := flag.String("images", "", "names of container images, separated by spaces, that the fake registry also has")
	dirty := flag.Uint64("guest-dirty", 0, "bytes that every guest has written; 0: a few pages")
	private := flag.Bool("private", false, "give each sandbox its own "+privateDir+", which branches keep")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	return apirig.During("rigd", func(t *apirig.Lifetime) error {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		if err := guestRAM(t); err != nil {
			return err
		}
		rig := apirig.New(t, apirig.Options{Unchecked: !*checked, Open: *open, Domain: *domain,
			Private: *private, Limits: face.Limits{Keepalive: *keepalive}, Images: strings.Fields(*images),
			Agent: func(dir string) *exec.Cmd { return agentHere(t, self, dir, *private) }})
		go rig.History.Run(ctx)
		if *dirty > 0 {
			rig.VMs.GuestDirty = *dirty
		}
		d := newDaemon(rig)
		tmp := t.TempDir()
		if err := d.listen("tcp", *bind); err != nil {
			return err
		}
		if err := d.listen("unix", filepath.Join(tmp, "forkd.sock")); err != nil {
			return err
		}
		d.serve()
		t.Cleanup(d.close)
		r := ready{URL: "http://" + d.addresses[0].String(), Socket: "unix://" + d.addresses[1].String(),
			Docker: "unix://" + rig.ServeDocker(t), Token: apirig.Token, Snapshot: "base", Tmp: t.TempDir(),
			File: rig.Parent.Kernel, Tokens: rig.TokenFile, PID: os.Getpid()}
		if err := bake(ctx, rig, r); err != nil {
			return err
		}
		if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	})
}

func bake(ctx context.Context, rig *apirig.Rig, r ready) error {
	c, err := client.New(r.URL, r.Token)
	if err != nil {
		return err
	}
	defer c.Close()
	rig.Parent.Tag = r.Snapshot
	_, err = c.Bake(ctx, rig.Parent)
	return err
}

// privateDir is the only directory whose content differs between sandboxes if the option -private
// is set. All other directories are directories of this host.
const privateDir = "/srv"

// agentHere returns the command of an agent. The agent exits when this program exits. If private is
// set, the agent has a mount namespace of its own, in which this program's user is root.
func agentHere(t *apirig.Lifetime, self, dir string, private bool) *exec.Cmd {
	cmd := exec.Command(self, agentArg, dir)
	if private {
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}}
	}
	if _, err := cmd.StdinPipe(); err != nil { // the pipe stays open until Wait
		t.Errorf("agent: %v", err)
	}
	return cmd
}

// mountFiles mounts the given directory at privateDir.
func mountFiles(own string) error {
	if err := unix.Mount(own, privateDir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s on %s: %w", own, privateDir, err)
	}
	return nil
}

// guestRAM maps memory like a VMM. The statistics of a sandbox, whose VM is fake, measure this
// mapping.
func guestRAM(t *apirig.Lifetime) error {
	ram, err := unix.Mmap(-1, 0, 512<<20, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return err
	}
	t.Cleanup(func() { _ = unix.Munmap(ram) }) // the process is about to exit
	return nil
}

// restartGap is the default time between the end and the start of a restart.
const restartGap = 200 * time.Millisecond
