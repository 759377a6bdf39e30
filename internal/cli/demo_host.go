package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/build/image"
	"github.com/forkd/forkd/internal/daemon"
	"github.com/forkd/forkd/internal/embedded"
	"github.com/forkd/forkd/internal/emu/tcghost"
	"github.com/forkd/forkd/internal/vmm/kvm"
)

// demoHost says where the demo's daemon runs and how to stop it.
type demoHost struct {
	accel  string // "kvm" or "tcg", in the daemon's words
	name   string
	stop   string // a command, empty if the demo was given the daemon
	remote bool   // it may be another host than this one
}

// startHost connects to the daemon that was named; or to this host's own where KVM is usable, or
// else to that of the emulated host, and starts these if they do not run.
func (d *demo) startHost(url string, st *status) (string, error) {
	address := url
	var err error
	switch {
	case url != "":
		d.where = demoHost{name: "the daemon at " + url, remote: isRemote(url)}
	case kvm.Probe() == nil:
		address, err = d.startLocal(st)
	default:
		err = d.startInMachine(st)
	}
	if err != nil {
		return "", err
	}
	if d.client, _, err = connect(d.ctx, address, d.progress); err != nil {
		return "", err
	}
	v, err := d.client.Version(d.ctx)
	if err != nil {
		return "", err
	}
	d.where.accel, d.figures.Accel = v.Accel, v.Accel
	return fmt.Sprintf("forkd %s in %s", v.Version, d.where.name), nil
}

func (d *demo) startInMachine(st *status) error {
	m, ready, err := runningMachine()
	if err != nil {
		return err
	}
	d.where = demoHost{name: "emulated host " + m.Name, stop: os.Args[0] + " machine stop --name " + m.Name}
	if ready {
		return nil
	}
	st.step("start the host", "KVM is not usable here: emulating a host that has it")
	_, err = startMachine(d.ctx, m, tcghost.DefaultOptions(), d.progress)
	return err
}

// startLocal returns the address of this host's daemon, which it starts if none answers.
func (d *demo) startLocal(st *status) (string, error) {
	cfg := daemon.Config{}
	if err := cfg.Defaults(os.Getuid(), os.Getenv); err != nil {
		return "", err
	}
	address := "unix://" + cfg.Socket
	d.where = demoHost{name: "the daemon of this host"}
	c, err := client.New(address, "")
	if err != nil {
		return "", err
	}
	defer c.Close()
	if c.Healthy(d.ctx) == nil {
		return address, nil
	}
	st.step("start the host", "the daemon")
	log := filepath.Join(cfg.RunDir, "daemon.log")
	ended, pid, err := startDaemon(cfg.RunDir, log)
	if err != nil {
		return "", fmt.Errorf("start the daemon: %w", err)
	}
	d.where.stop = fmt.Sprintf("kill %d", pid)
	ctx, cancel := context.WithTimeout(d.ctx, daemonStart)
	defer cancel()
	for c.Healthy(ctx) != nil {
		select {
		case <-ended:
			p, _ := os.ReadFile(log) // without it the error says less
			return "", fmt.Errorf("the daemon ended at once:\n%s", strings.TrimSpace(string(p)))
		case <-ctx.Done():
			return "", fmt.Errorf("the daemon does not answer (see %s): %w", log, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return address, nil
}

// startDaemon runs this program as a daemon in a session of its own, which outlives the demo. The
// channel is closed if it ends before the demo does.
func startDaemon(runDir, logPath string) (<-chan struct{}, int, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, 0, err
	}
	if err := os.MkdirAll(runDir, 0o700); err != nil {
		return nil, 0, err
	}
	log, err := os.Create(logPath)
	if err != nil {
		return nil, 0, err
	}
	defer log.Close()
	cmd := exec.Command(self, "daemon")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, 0, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // its log says why it ended
	}()
	return ended, cmd.Process.Pid, nil
}

// demoRecipe is what the parent is baked from.
const demoRecipe = "python-numpy"

// demoTagPrefix begins the tags of the demo's snapshots. The rest names what they were baked from,
// so that a snapshot of another version is not taken for ours.
const demoTagPrefix = "demo-"

func (d *demo) buildImage(st *status) (string, error) {
	var err error
	if d.recipe, err = loadRecipe(demoRecipe); err != nil {
		return "", err
	}
	if d.image, d.kernel, err = buildFiles(d.ctx, d.recipe, "", st); err != nil {
		return "", err
	}
	if d.tag, err = demoTag(d.recipe, d.image, d.kernel); err != nil {
		return "", err
	}
	return fmt.Sprintf("recipe %s, guest kernel %s", d.recipe.Name, d.kernel.Version), nil
}

func (d *demo) bake(st *status) (string, error) {
	s, err := d.client.Snapshot(d.ctx, d.tag)
	if err == nil && s.Bootable {
		return "snapshot " + d.tag + " is there already", nil
	}
	if err != nil && !client.IsNotFound(err) {
		return "", err
	}
	var b built
	if err := b.bake(d.ctx, d.client, buildOptions{tag: d.tag}, d.recipe, d.image, d.kernel, st); err != nil {
		return "", err
	}
	d.removeOld()
	return fmt.Sprintf("boot %.1f s, warm-up %.1f s, save %.1f s, flush %.1f s",
		b.BootMS/1000, b.WarmupMS/1000, b.SaveMS/1000, b.PersistMS/1000), nil
}

func demoTag(r *image.Recipe, img *image.Image, kernel *image.KernelFiles) (string, error) {
	vmm, err := embedded.Open(embedded.VMM)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%v\n%v\n%d %d\n", r.EnvOver(img.Env), r.Warmup, r.MemoryMiB, r.VCPUs)
	fmt.Fprintf(h, "%s\n%s\n%s\n%x\n", img.Rootfs(), kernel.VMLinux, kernel.Initrd, sha256.Sum256(vmm))
	return demoTagPrefix + hex.EncodeToString(h.Sum(nil))[:12], nil
}

// removeOld removes the snapshots that earlier versions of the demo baked and nobody uses. It is
// not the demo's business if that fails.
func (d *demo) removeOld() {
	list, err := d.client.Snapshots(d.ctx)
	if err != nil {
		return
	}
	for _, s := range list {
		if strings.HasPrefix(s.Tag, demoTagPrefix) && s.Tag != d.tag {
			_ = d.client.DeleteSnapshot(d.ctx, s.Tag, client.DeleteOptions{})
		}
	}
}
