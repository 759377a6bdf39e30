package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/cachedir"
	"github.com/forkd/forkd/internal/daemon"
	"github.com/forkd/forkd/internal/emu/machineapi"
	"github.com/forkd/forkd/internal/emu/tcghost"
)

// need is how much room a daemon wants in one place, in bytes.
type need struct {
	check        string
	good, enough uint64
}

func hotNeed() need  { return need{"tmpfs for hot memory", 1 << 30, 256 << 20} }
func diskNeed() need { return need{"disk space", 5 << 30, 1 << 30} }

// judge turns free bytes into a finding. where names the place for the user.
func (n need) judge(where string, free uint64) finding {
	detail := fmt.Sprintf("%s: %d MiB free", where, free>>20)
	switch {
	case free >= n.good:
		return found(n.check, pass, detail)
	case free >= n.enough:
		return found(n.check, warn, detail)
	}
	return found(n.check, fail, detail+fmt.Sprintf(": %d MiB are needed", n.enough>>20))
}

// checkOwnSpace looks at the places of a daemon on this host.
func checkOwnSpace() []finding {
	cfg := daemon.Config{}
	if err := cfg.Defaults(os.Getuid(), os.Getenv); err != nil {
		return nil // nobody has said where a daemon would keep its files
	}
	hot, disk := checkSpace(hotNeed(), cfg.RAMDir), checkSpace(diskNeed(), cfg.StateDir)
	if hot.Verdict != pass {
		hot = hot.asRoot("mount -o remount,size=75% /dev/shm")
	}
	if disk.Verdict != pass {
		disk = disk.byHand("forkd prune --older-than 24h --yes; forkd cache prune")
	}
	return []finding{hot, disk}
}

// spaceLimit bounds the question to an emulated host.
const spaceLimit = 10 * time.Second

// checkMachineSpace looks at the places of the daemon in an emulated host, and at the host's file
// system, on which the emulated host's disk is a file that grows.
func checkMachineSpace(ctx context.Context, m tcghost.Machine) []finding {
	ctx, cancel := context.WithTimeout(ctx, spaceLimit)
	defer cancel()
	state, ram := tcghost.DaemonDirs()
	free, err := m.Space(ctx, state, ram)
	findings := machineSpace(m.Name, free, err)
	cache, err := cachedir.Dir()
	if err != nil {
		return findings
	}
	host := diskNeed()
	host.check = "disk space of the host"
	return append(findings, checkSpace(host, cache))
}

// machineSpace judges an emulated host's answer.
func machineSpace(name string, free machineapi.Space, err error) []finding {
	state, ram := tcghost.DaemonDirs()
	var findings []finding
	for _, place := range []struct {
		need need
		dir  string
	}{{hotNeed(), ram}, {diskNeed(), state}} {
		bytes, ok := free[place.dir]
		if err != nil || !ok {
			detail := fmt.Sprintf("emulated host %s does not say how much is free: %v", name, err)
			findings = append(findings, found(place.need.check, warn, detail))
			continue
		}
		findings = append(findings, place.need.judge("emulated host "+name+", "+place.dir, bytes))
	}
	return findings
}

// checkSpace looks at the file system of dir, or of the nearest directory above that exists.
func checkSpace(n need, dir string) finding {
	at := dir
	for {
		if _, err := os.Stat(at); err == nil || at == "/" {
			break
		}
		at = filepath.Dir(at)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		return found(n.check, warn, fmt.Sprintf("%s: %v", at, err))
	}
	return n.judge(dir, st.Bavail*uint64(st.Bsize))
}
