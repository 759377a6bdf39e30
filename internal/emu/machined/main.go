// Package machined is the init of a `forkd machine`. It boots the emulated Linux host, reaps
// orphans, and serves the API through which the host runs commands and the forkd daemon.
//
// It knows nothing about sandboxes, images or KVM. It restarts a daemon that died by accident. It
// only reports everything else, and the host decides.
//
// Two processes run from one binary. PID 1 reaps every orphan with wait4(-1). That would steal the
// children of a process that also waits for its own. So PID 1 starts a second copy of the binary,
// the server, which waits for the processes it starts.
package machined

import (
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/emu/machineapi"
)

// serveArg selects the server. PID 1 passes the configuration on standard input.
const serveArg = "serve"

// requestTimeout bounds the time to read a request's header.
const requestTimeout = 30 * time.Second

// Main runs the init (PID 1) or the server (argument "serve"). It returns the exit code of a server
// that could not start. PID 1 never returns: it powers the emulated host off instead.
func Main(args []string) int {
	log.SetFlags(0)
	log.SetPrefix("forkd-machined: ")
	if len(args) == 1 && args[0] == serveArg {
		log.Printf("server: %v", serve())
		return 1
	}
	if os.Getpid() != 1 {
		log.Print("this is the init of an emulated host and runs as PID 1 there only")
		return 2
	}
	log.Printf("emulated host goes down: %v", initMain())
	powerOff()
	return 1
}

// initMain boots, starts the server and reaps processes until the server exits, which it should
// not.
func initMain() error {
	if err := setEnv(); err != nil {
		return err
	}
	config, err := boot()
	if err != nil {
		return err
	}
	pid, err := startServer(config)
	if err != nil {
		return err
	}
	for {
		var status unix.WaitStatus
		got, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("reap: %w", err)
		case got == pid:
			return fmt.Errorf("server ended with wait status %#x", int(status))
		}
	}
}

// setEnv sets the environment of all processes in the emulated host.
func setEnv() error {
	os.Clearenv()
	for _, kv := range [][2]string{
		{"PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		{"HOME", "/root"}, {"USER", "root"}, {"TMPDIR", "/tmp"}, {"LANG", "C.UTF-8"},
	} {
		if err := os.Setenv(kv[0], kv[1]); err != nil {
			return fmt.Errorf("set environment: %w", err)
		}
	}
	return nil
}

// startServer starts the server process without os/exec, because the reaper waits for it.
func startServer(config machineapi.Config) (int, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, fmt.Errorf("start server: %w", err)
	}
	defer r.Close()
	defer w.Close()
	p, err := os.StartProcess("/proc/self/exe", []string{"forkd-machined", serveArg},
		&os.ProcAttr{Env: os.Environ(), Dir: "/", Files: []*os.File{r, os.Stdout, os.Stderr}})
	if err != nil {
		return 0, fmt.Errorf("start server: %w", err)
	}
	if err := json.NewEncoder(w).Encode(config); err != nil {
		return 0, fmt.Errorf("configure server: %w", err)
	}
	pid := p.Pid
	return pid, p.Release()
}

// serve listens on every address of the emulated host. It is reachable only through the ports that
// the host forwards.
func serve() error {
	var config machineapi.Config
	if err := json.NewDecoder(os.Stdin).Decode(&config); err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	s := &http.Server{
		Addr:              fmt.Sprintf(":%d", machineapi.InitPort),
		Handler:           NewHandler(config, cgroupRoot, powerOff),
		ReadHeaderTimeout: requestTimeout,
	}
	return s.ListenAndServe()
}

// killGrace is how long processes may take to exit before file systems are unmounted.
const killGrace = 300 * time.Millisecond

// powerOff kills all processes so that none writes any more, syncs the disks, and powers the
// emulated host off.
func powerOff() {
	for _, cgroup := range []string{"exec", "daemon"} {
		if err := os.WriteFile(cgroupRoot+"/"+cgroup+"/cgroup.kill", []byte("1"), 0); err != nil {
			log.Printf("power off: %v", err)
		}
	}
	time.Sleep(killGrace)
	unix.Sync()
	if err := unix.Unmount(machineapi.StateDir, 0); err != nil {
		// A file that the daemon put elsewhere is still in use. The disk is synced and journalled,
		// so the next mount only replays the journal.
		log.Printf("unmount %s: %v", machineapi.StateDir, err)
	}
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		log.Printf("power off: %v", err)
	}
}
