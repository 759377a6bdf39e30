package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/forkd/forkd/bench/internal/stub"
)

// container is a peer that starts a container for every child, with a program that is used like
// runc. Such a peer has no pool and no vCPUs. CPU time and memory are unknown, because no process
// corresponds exactly to a child.
func (b *bench) container(ctx context.Context, name, bin string) (*peer, error) {
	p, version, err := newPeer(ctx, name, bin, false)
	if err != nil || p.absent != "" {
		return p, err
	}
	p.how = version + ": a container without network and limits, whose program answers at once"
	c := &container{bin: bin}
	if c.dir, _, err = b.directories(); err != nil {
		return nil, err
	}
	if err := c.makeBundle(); err != nil {
		return nil, err
	}
	p.fork = processes(func(context.Context) (process, error) { return &running{of: c}, nil }, false)
	// If this host lacks a requirement of the peer, the fork fails, and the peer is omitted.
	if err := p.fork(ctx, &cell{n: 1, width: 1}, 1); err != nil {
		p.absent = fmt.Sprintf("it does not work here: %v", err)
	}
	return p, nil
}

type container struct{ bin, dir string }

func (c *container) bundle() string { return filepath.Join(c.dir, "bundle") }

// makeBundle makes a bundle according to the OCI runtime specification 1.0.
func (c *container) makeBundle() error {
	rootfs := filepath.Join(c.bundle(), "rootfs")
	for _, dir := range []string{"proc", "dev"} {
		if err := os.MkdirAll(filepath.Join(rootfs, dir), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(rootfs, "answer"), stub.Program(), 0o755); err != nil {
		return err
	}
	config, err := json.Marshal(bundleConfig())
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.bundle(), "config.json"), config, 0o600)
}

func bundleConfig() any {
	type fields map[string]any
	var namespaces []fields
	for _, kind := range []string{"pid", "mount", "ipc", "uts", "network"} {
		namespaces = append(namespaces, fields{"type": kind})
	}
	return fields{
		"ociVersion": "1.0.2",
		"process": fields{"user": fields{"uid": 0, "gid": 0}, "args": []string{"/answer"}, "cwd": "/",
			"noNewPrivileges": true},
		"root": fields{"path": "rootfs", "readonly": true},
		// All containers share the bundle, but each container has its own /dev for its devices.
		"mounts": []fields{{"destination": "/proc", "type": "proc", "source": "proc"},
			{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"mode=755"}}},
		"linux": fields{"namespaces": namespaces},
	}
}

// running is a container.
type running struct {
	of  *container
	id  string
	cmd *exec.Cmd
	out *os.File // standard output of the container
}

func (r *running) start(context.Context) error {
	dir, err := os.MkdirTemp(r.of.dir, "c")
	if err != nil {
		return err
	}
	out, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer theirs.Close()
	r.id, r.out = filepath.Base(dir), out
	r.cmd = exec.Command(r.of.bin, append(r.of.flags(), "run", "--bundle", r.of.bundle(), r.id)...)
	r.cmd.Stdout, r.cmd.Stderr = theirs, os.Stderr
	return r.cmd.Start()
}

// flags returns the flags that every command needs. Without --network=none, gVisor would need a
// network.
func (c *container) flags() []string {
	flags := []string{"--root", filepath.Join(c.dir, "state")}
	if filepath.Base(c.bin) == "runsc" {
		flags = append(flags, "--network=none")
	}
	return flags
}

func (r *running) answer(ctx context.Context) error { return awaitAnswer(ctx, r.out) }

func (r *running) describe(c *child) { c.private = noPrivate }

func (r *running) end() {
	if r.cmd != nil && r.cmd.Process != nil {
		// When the container has ended, its runtime process removes it. Forcing the removal here
		// would make runsc wait for seconds.
		if exec.Command(r.of.bin, append(r.of.flags(), "kill", r.id, "KILL")...).Run() != nil {
			_ = r.cmd.Process.Kill() // there is no container, or it could not be killed
		}
		_ = r.cmd.Wait()
	}
	if r.out != nil {
		r.out.Close()
	}
}
