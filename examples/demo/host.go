package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/forkd/forkd/client"
)

// host describes where the demo's daemon runs and how to stop it.
type host struct {
	accel  string // "kvm" or "tcg", according to the daemon
	name   string
	stop   string // command that stops the daemon; empty if the demo did not start it
	remote bool   // the daemon may run on another host
}

// info has the fields of `forkd info -o json` that the demo needs.
type info struct {
	URL       string         `json:"daemon_url"`
	TokenFile string         `json:"token_file"` // token of the daemon in an emulated host
	Daemon    client.Version `json:"daemon"`
}

// forkd runs a command of forkd and decodes its JSON into answer.
func (d *demo) forkd(answer any, args ...string) error {
	cmd := exec.CommandContext(d.ctx, d.program, append(args, "-o", "json")...)
	cmd.Stderr = d.progress
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("forkd %s: %w", strings.Join(args, " "), err)
	}
	return json.Unmarshal(out, answer)
}

// startHost connects to the daemon at address. If address is empty, it connects to the daemon that
// the command forkd finds. If there is no daemon, it starts one: on this host or, if KVM is not
// usable, in the emulated host.
func (d *demo) startHost(address string) (string, error) {
	var i info
	var err error
	switch {
	case address != "":
		d.where = host{name: "the daemon at " + address, remote: isRemote(address)}
		err = d.forkd(&i, "info", "--daemon-url", address)
	default:
		i, err = d.findDaemon()
	}
	if err != nil {
		return "", err
	}
	token := os.Getenv("FORKD_TOKEN")
	if i.TokenFile != "" {
		p, err := os.ReadFile(i.TokenFile)
		if err != nil {
			return "", err
		}
		token = strings.TrimSpace(string(p))
		name := filepath.Base(filepath.Dir(filepath.Dir(i.TokenFile)))
		d.where.name, d.where.stop = "emulated host "+name, d.shown+" machine stop --name "+name
	}
	if d.client, err = client.New(i.URL, token); err != nil {
		return "", err
	}
	d.where.accel, d.figures.Accel = i.Daemon.Accel, i.Daemon.Accel
	return fmt.Sprintf("forkd %s in %s", i.Daemon.Version, d.where.name), nil
}

func (d *demo) findDaemon() (i info, err error) {
	d.where = host{name: "the daemon of this host"}
	quiet := *d
	quiet.progress = io.Discard // usually there is no daemon yet, which is not worth a message
	if err := quiet.forkd(&i, "info"); err == nil && i.Daemon.NoKVM == "" {
		return i, nil
	}
	if i.Daemon.NoKVM == "" && d.hasKVM() {
		err = d.startDaemon()
	} else {
		fmt.Fprintln(d.progress, "forkd: KVM is not usable here: emulating a host that has it")
		err = d.forkd(new(any), "machine", "start")
	}
	if err != nil {
		return i, err
	}
	return i, d.forkd(&i, "info")
}

// hasKVM reports whether this host can run VMs.
func (d *demo) hasKVM() bool {
	var findings []struct{ Check, Verdict string }
	// Ignore the error: doctor exits with 1 if a check fails.
	out, _ := exec.CommandContext(d.ctx, d.program, "doctor", "-o", "json").Output()
	if err := json.Unmarshal(out, &findings); err != nil {
		return false
	}
	for _, f := range findings {
		if f.Check == "/dev/kvm" {
			return f.Verdict == "pass"
		}
	}
	return false
}

// daemonStart bounds the time for starting a daemon.
const daemonStart = time.Minute

// startDaemon starts a daemon and waits until it answers. The daemon has its own session, so it
// continues to run after the demo.
func (d *demo) startDaemon() error {
	log, err := os.Create(filepath.Join(os.TempDir(), fmt.Sprintf("forkd-demo-daemon-%d.log", os.Getuid())))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(d.program, "daemon")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the daemon: %w", err)
	}
	d.where.stop = fmt.Sprintf("kill %d", cmd.Process.Pid)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // the log says why the daemon has exited
	}()
	ctx, cancel := context.WithTimeout(d.ctx, daemonStart)
	defer cancel()
	for exec.CommandContext(ctx, d.program, "info").Run() != nil {
		select {
		case <-ended:
			p, _ := os.ReadFile(log.Name()) // if this fails, the error has less detail
			return fmt.Errorf("the daemon ended at once:\n%s", strings.TrimSpace(string(p)))
		case <-ctx.Done():
			return fmt.Errorf("the daemon does not answer (see %s): %w", log.Name(), ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
	return nil
}

// recipe is the recipe of the parent.
const recipe = "python-numpy"

// tagPrefix is the prefix of the tags of the demo's snapshots. The rest of a tag identifies the
// version of forkd that has baked the snapshot, so that the demo does not use snapshots of other
// versions.
const tagPrefix = "demo-"

// built has the fields of `forkd build -o json` that the demo needs.
type built struct {
	client.Baked
	Reused  bool    `json:"reused"`
	ImageMS float64 `json:"image_ms"`
	BakeMS  float64 `json:"bake_ms"`
	Cached  int     `json:"cached"`
	Run     int     `json:"run"`
}

// buildParent builds the image and bakes the parent. forkd does both with one command.
func (d *demo) buildParent() error {
	program, err := os.ReadFile(d.program)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(program)
	d.tag = tagPrefix + hex.EncodeToString(sum[:])[:12]
	var b built
	if err := d.forkd(&b, "build", recipe, "--tag", d.tag, "--reuse"); err != nil {
		return fmt.Errorf("build the parent: %w", err)
	}
	s, err := d.client.Snapshot(d.ctx, d.tag)
	if err != nil {
		return err
	}
	d.done(stage{"build the image", fmt.Sprintf("recipe %s, guest kernel %s", recipe, s.Kernel), milliseconds(b.ImageMS)})
	if b.Reused {
		d.done(stage{"bake the parent", "snapshot " + d.tag + " is there already", 0})
		return nil
	}
	d.removeOld()
	d.done(stage{"bake the parent", fmt.Sprintf("boot %.1f s, warm-up %.1f s; %d steps done, %d cached", b.BootMS/1000,
		b.WarmupMS/1000, b.Run, b.Cached), milliseconds(b.BakeMS)})
	return nil
}

func milliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// removeOld removes unused snapshots that earlier versions of the demo have baked. It ignores
// errors.
func (d *demo) removeOld() {
	list, err := d.client.Snapshots(d.ctx)
	if err != nil {
		return
	}
	for _, s := range list {
		if strings.HasPrefix(s.Tag, tagPrefix) && s.Tag != d.tag {
			_ = d.client.DeleteSnapshot(d.ctx, s.Tag, client.DeleteOptions{})
		}
	}
}
