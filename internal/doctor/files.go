package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/cachedir"
	"github.com/forkd/forkd/internal/daemon"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/emu/machineapi"
	"github.com/forkd/forkd/internal/emu/tcghost"
	"github.com/forkd/forkd/internal/private"
)

// Checks of forkd's own files, and of the disk space for them.

// A need is the free space that a daemon needs in one place, in bytes. The check warns if less than
// n.good is free, and fails if less than n.enough is free.
type need struct{ good, enough uint64 }

var (
	hotNeed  = need{1 << 30, 256 << 20}
	diskNeed = need{5 << 30, 1 << 30}
)

// judge converts a number of free bytes to a finding, which names the given place.
func (n need) judge(where string, free uint64) Finding {
	switch {
	case free >= n.good:
		return pass("%s: %d MiB free", where, free>>20)
	case free >= n.enough:
		return warn("%s: %d MiB free", where, free>>20)
	}
	return fail("%s: %d MiB free: %d MiB are needed", where, free>>20, n.enough>>20)
}

// at(dir) judges the free space of the file system of dir. If dir does not exist, it uses the
// nearest existing directory above dir.
func (n need) at(dir string) Finding {
	at := dir
	for at != "/" {
		if _, err := os.Stat(at); err == nil {
			break
		}
		at = filepath.Dir(at)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		return warn("%s: %v", at, err)
	}
	return n.judge(dir, st.Bavail*uint64(st.Bsize))
}

// config returns the configuration of a daemon on this host. The result is zero if the default
// directories are unknown.
func config() (cfg daemon.Config) {
	if err := cfg.Defaults(os.Getuid(), os.Getenv); err != nil {
		return daemon.Config{}
	}
	return cfg
}

// hotSpace and diskSpace check the free space for the daemon, on this host or in the emulated host.
func (h *Host) hotSpace() Finding {
	_, ram := tcghost.DaemonDirs()
	return h.space(hotNeed, config().RAMDir, ram, asRoot("mount -o remount,size=75% /dev/shm"))
}

func (h *Host) diskSpace() Finding {
	state, _ := tcghost.DaemonDirs()
	return h.space(diskNeed, config().StateDir, state, byHand("forkd prune --older-than 24h --yes; forkd cache prune"))
}

func (h *Host) space(n need, here, inMachine string, fix Fix) Finding {
	switch {
	case h.inMachine:
		return h.room[inMachine]
	case here == "":
		return Finding{}
	}
	f := n.at(here)
	if f.Verdict == Pass {
		return f
	}
	return f.by(fix)
}

// machineFile checks the free space on this host for the disk of an emulated host. This disk is a
// file that grows.
func (h *Host) machineFile() Finding {
	cache, err := cachedir.Dir()
	if !h.inMachine || err != nil {
		return Finding{}
	}
	return diskNeed.at(cache)
}

// spaceLimit bounds the time that an emulated host may take to answer.
const spaceLimit = 10 * time.Second

// askMachine asks the emulated host for its free space, if the daemon runs in one.
func (h *Host) askMachine() map[string]Finding {
	if !h.inMachine {
		return nil
	}
	ctx, cancel := context.WithTimeout(h.ctx, spaceLimit)
	defer cancel()
	state, ram := tcghost.DaemonDirs()
	free, err := h.machine.Space(ctx, state, ram)
	return judgeMachine(h.machine.Name, free, err)
}

// judgeMachine converts the answer of an emulated host to findings, by directory.
func judgeMachine(name string, free machineapi.Space, err error) map[string]Finding {
	state, ram := tcghost.DaemonDirs()
	room := map[string]Finding{}
	for dir, need := range map[string]need{state: diskNeed, ram: hotNeed} {
		if bytes, ok := free[dir]; ok && err == nil {
			room[dir] = need.judge("emulated host "+name+", "+dir, bytes)
		} else {
			room[dir] = warn("emulated host %s does not say how much is free: %v", name, err)
		}
	}
	return room
}

// directories checks the directories of this user's daemon, if they exist.
func (h *Host) directories() Finding {
	cfg := config()
	if h.inMachine || cfg.StateDir == "" {
		return Finding{}
	}
	there := 0
	for _, d := range []struct{ option, path string }{
		{"--state-dir", cfg.StateDir}, {"--ram-dir", cfg.RAMDir}, {"--run-dir", cfg.RunDir},
	} {
		info, err := os.Lstat(d.path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the daemon will create the directory
		}
		there++
		dir, err := private.Dir(d.path, d.option)
		if err == nil {
			dir.Close()
			continue
		}
		bad := fail("the daemon does not start: " + err.Error())
		if info != nil && info.IsDir() && info.Mode().Perm()&0o077 != 0 {
			// The user is asked before this fix is run, because other users may have changed the
			// content.
			bad.Fix = &Fix{Kind: askFix, Command: "chmod 700 " + quoted(d.path)}
		}
		return bad
	}
	if there == 0 {
		return skip("not there yet: the daemon makes them")
	}
	return pass("no other user can read or replace them")
}

// tokenFile checks the permissions of the daemon's token file.
func (h *Host) tokenFile() Finding {
	path, err := h.TokenFile()
	if err != nil {
		return skip(err.Error())
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return skip(path + " is not there: the unix socket needs none")
	}
	if err != nil {
		return warn(err.Error())
	}
	p, err := os.ReadFile(path)
	if err != nil {
		return warn(err.Error())
	}
	return judgeTokenFile(path, info.Mode(), auth.IsSole(p))
}

// judgeTokenFile judges the permissions of a token file. If other users could read a token in plain
// text, or could write to the file, it is not enough to change the permissions.
func judgeTokenFile(path string, mode fs.FileMode, sole bool) Finding {
	if mode.Perm()&0o077 == 0 {
		return pass(path)
	}
	text := fmt.Sprintf("%s has mode %#o, which lets other users in: the daemon refuses it", path, mode.Perm())
	file := quoted(path)
	switch {
	case sole:
		return fail(text + ". The token itself is in it, and others may have read it: replace it").
			by(byHand("rm " + file + " && forkd token new default --scope admin --file " + file))
	case mode.Perm()&0o022 != 0:
		return fail(text + ". Others may have added tokens: remove those that are not yours").
			by(byHand("forkd token ls --file " + file + " # then: chmod 600 " + file))
	}
	return fail(text + ". Only hashes of tokens are in it").by(safely("chmod 600 " + file))
}

func (h *Host) cache() Finding {
	dir, err := cachedir.Dir()
	if err != nil {
		return fail(err.Error()).by(byHand("export FORKD_CACHE=DIR"))
	}
	var have []string
	for _, sub := range []string{"kernel", "images"} {
		entries, err := filepath.Glob(filepath.Join(dir, sub, "[^.]*"))
		if err == nil && len(entries) > 0 {
			have = append(have, fmt.Sprintf("%d %s", len(entries), sub))
		}
	}
	if len(have) < 2 {
		return warn(dir + ": no kernel or no image yet").by(byHand("forkd build base"))
	}
	return pass("%s: %s", dir, strings.Join(have, ", "))
}
