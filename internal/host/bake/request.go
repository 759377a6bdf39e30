package bake

import (
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Request asks for a parent to be booted, warmed up and saved.
type Request struct {
	Client string // name of the client; the bakes of different clients are interleaved
	Tag    string
	// whether a client without the right to bake made the snapshot From; if so, the bake takes a
	// place for such clients and has their time limit
	Foreign bool
	From    string // tag of a disk-only snapshot whose disk is booted instead of Rootfs; may be empty
	// path of a bzImage or ELF kernel; empty: the kernel of the snapshot From, which must then be
	// set
	Kernel string
	// path of the initramfs with the agent; empty: the Baker makes one for Kernel; must be empty
	// without Kernel, because the bake then uses the snapshot's initramfs
	Initrd    string
	Rootfs    string // path of the raw root file system, which is never written
	MemoryMiB uint64 // 0 means as in From, or 512 without From
	VCPUs     uint32 // 0 means as in From, or 1 without From
	// number of volumes that a child can mount, at most vm.MaxVolumeSlots; 0 means as in From
	VolumeSlots uint32
	Template    string             // CPU template; empty: as in From, or the Baker's default without From
	Env         map[string]string  // added to the environment of From
	Commands    []string           // warm-up commands, run one after another by /bin/sh -c
	Python      string             // warm-up code, run in the warm interpreter after Commands
	Ready       time.Duration      // time limit of the guest's boot; 0 means 300 s
	Network     *netclient.Setting // nil: no network; children have the setting of From, or the default without From
	Limits      vm.Limits          // default for children; zero: the limits of From
	Hooks       snapshot.Hooks     // hooks of children; zero: the hooks of From
	Encrypt     bool               // encrypt the snapshot; the parent's disk is in RAM until then
	Strict      bool               // children are strict (see unique.Strict); they always are if From is strict
	Warmup      time.Duration      // time limit of each warm-up step; 0 means 600 s
	Transient   bool               // the parent is booted for a fork; the snapshot is deleted after its last sandbox
}

// Defaults and limits of the fields of a Request.
const (
	defaultMemoryMiB = 512
	minMemoryMiB     = 64
	maxMemoryMiB     = vm.MaxMemoryBytes >> 20
	defaultReady     = 300 * time.Second // long, because Jupyter's kernel starts slowly on an emulated CPU
	defaultWarmup    = 600 * time.Second
	parentHostname   = "forkd"
)

// ofClient reports whether the disk comes from a client without the right to bake.
func (r *Request) ofClient() bool { return r.Transient || r.Foreign }

func (r *Request) check() error {
	if err := snapshot.CheckTag(r.Tag); err != nil {
		return &invalid.Error{Field: "tag", Reason: err.Error()}
	}
	if r.From != "" && r.Rootfs != "" {
		return invalid.Errorf("rootfs", "excludes from: the parent boots from the disk of %q", r.From)
	}
	if r.From != "" && r.Initrd != "" && r.Kernel == "" {
		return invalid.Errorf("initrd", "without kernel: the modules in it must be those of the kernel")
	}
	for _, f := range []struct{ field, path string }{{"kernel", r.Kernel}, {"initrd", r.Initrd}, {"rootfs", r.Rootfs}} {
		if f.path == "" && (f.field == "initrd" || r.From != "") {
			continue
		}
		if f.path == "" || !filepath.IsAbs(f.path) {
			return invalid.Errorf(f.field, "%q: want the absolute path of a file on the daemon's host", f.path)
		}
		st, err := os.Stat(f.path)
		if err != nil {
			return &invalid.Error{Field: f.field, Reason: err.Error()}
		}
		if !st.Mode().IsRegular() || st.Size() == 0 {
			return &invalid.Error{Field: f.field, Reason: f.path + ": not a regular file with content"}
		}
	}
	if r.MemoryMiB < minMemoryMiB || r.MemoryMiB > maxMemoryMiB {
		return invalid.Errorf("mem_size_mib", "%d: want %d to %d", r.MemoryMiB, minMemoryMiB, maxMemoryMiB)
	}
	if have := HostMemoryMiB(); r.MemoryMiB > have {
		return invalid.Errorf("mem_size_mib", "%d: the daemon's host has %d MiB of memory", r.MemoryMiB, have)
	}
	if r.VCPUs < 1 || r.VCPUs > vm.MaxVCPUs {
		return invalid.Errorf("vcpus", "%d: want 1 to %d", r.VCPUs, vm.MaxVCPUs)
	}
	if r.VolumeSlots > vm.MaxVolumeSlots {
		return invalid.Errorf("volume_slots", "%d: want at most %d", r.VolumeSlots, vm.MaxVolumeSlots)
	}
	if err := vm.CheckTemplate(r.Template); err != nil {
		return &invalid.Error{Field: "cpu_template", Reason: err.Error()}
	}
	if r.Network != nil && len(r.Network.Secrets) > 0 {
		return &invalid.Error{Field: "network.secrets", Reason: "a snapshot keeps none: give them to its forks"}
	}
	return nil
}

// HostMemoryMiB returns the memory of this host in MiB. A VM must not have more memory, because the
// daemon would spend minutes on setting up memory that the VM can never get.
func HostMemoryMiB() uint64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return maxMemoryMiB // the call cannot fail, because the address is valid
	}
	return info.Totalram * uint64(info.Unit) >> 20
}

func (k *Baker) withDefaults(r Request) Request {
	if r.MemoryMiB == 0 {
		r.MemoryMiB = defaultMemoryMiB
	}
	if r.VCPUs == 0 {
		r.VCPUs = 1
	}
	if r.Template == "" {
		r.Template = k.cfg.Template
	}
	if r.Ready == 0 {
		r.Ready = defaultReady
	}
	if r.Warmup == 0 {
		r.Warmup = defaultWarmup
	}
	return r
}
