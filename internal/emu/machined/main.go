// Package machined is the init of a `forkd machine`. It boots the emulated Linux host, reaps
// orphans, and serves the API through which the host runs commands and the forkd daemon.
//
// It knows nothing about sandboxes, images or KVM. It makes only one decision: it restarts a daemon
// that has crashed. In all other cases it reports the state, and the host decides.
//
// There are two processes of the same program. PID 1 waits for any process (wait4 with -1), to reap
// orphans. If it also started commands, it would reap them before os/exec could. So PID 1 starts a
// second process, the server, which starts and waits for commands.
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

// serveArg is the argument with which the program runs as the server. PID 1 passes the
// configuration on standard input.
const serveArg = "serve"

// requestTimeout bounds the time to read a request's header.
const requestTimeout = 30 * time.Second

// Main runs the init (as PID 1) or the server (with the argument "serve"). It returns the exit code
// of a server that could not start. As PID 1 it never returns: it powers the emulated host off
// instead.
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

// initMain boots, starts the server, and reaps processes. It returns an error when the server
// exits.
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

// startServer starts the server. It does not use os/exec, because the reaper of PID 1 waits for the
// server.
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

// serve serves the API on every address of the emulated host. Only the ports that the host forwards
// can be reached from outside.
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

// killGrace is the delay after all processes were killed and before file systems are unmounted.
const killGrace = 300 * time.Millisecond

// powerOff kills all processes, so that they do not write any more, syncs the disks, and powers the
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
		// A process still uses the file system. That is harmless: the disk is synced and has a
		// journal, so the next mount only replays the journal.
		log.Printf("unmount %s: %v", machineapi.StateDir, err)
	}
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		log.Printf("power off: %v", err)
	}
}
