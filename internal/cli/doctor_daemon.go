package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/cachedir"
	"github.com/forkd/forkd/internal/daemon"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/private"
)

// These checks are of forkd's own files, and of the daemon.

// checkDirectories looks at what a daemon of this user keeps, as far as it is there.
func checkDirectories() []finding {
	cfg := daemon.Config{}
	if err := cfg.Defaults(os.Getuid(), os.Getenv); err != nil {
		return nil // nobody has said where a daemon would keep its files
	}
	const check = "directories"
	there := 0
	for _, d := range []struct{ option, path string }{
		{"--state-dir", cfg.StateDir}, {"--ram-dir", cfg.RAMDir}, {"--run-dir", cfg.RunDir},
	} {
		info, err := os.Lstat(d.path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the daemon makes it
		}
		there++
		dir, err := private.Dir(d.path, d.option)
		if err == nil {
			dir.Close()
			continue
		}
		bad := found(check, fail, "the daemon does not start: "+err.Error())
		if info != nil && info.IsDir() && info.Mode().Perm()&0o077 != 0 {
			bad.Fix = &fix{Kind: askFix, Command: "chmod 700 " + quoted(d.path)} // others may have changed what is in it
		}
		return []finding{bad}
	}
	if there == 0 {
		return []finding{found(check, skip, "not there yet: the daemon makes them")}
	}
	return []finding{found(check, pass, "nobody else can read or replace them")}
}

// checkTokenFile looks at the file of the daemon's tokens.
func checkTokenFile(f *tokenFlags) finding {
	path, err := f.path()
	if err != nil {
		return found(tokenCheck, skip, err.Error())
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return found(tokenCheck, skip, path+" is not there: the unix socket needs none")
	case err != nil:
		return found(tokenCheck, warn, err.Error())
	}
	p, err := os.ReadFile(path)
	if err != nil {
		return found(tokenCheck, warn, err.Error())
	}
	return judgeTokenFile(path, info.Mode(), auth.IsSole(p))
}

const tokenCheck = "token file"

// judgeTokenFile judges by the mode of the file. Another mode mends it only if others have learned
// and changed nothing until then.
func judgeTokenFile(path string, mode fs.FileMode, sole bool) finding {
	if mode.Perm()&0o077 == 0 {
		return found(tokenCheck, pass, path)
	}
	text := fmt.Sprintf("%s has mode %#o, which lets other users in: the daemon does not take it", path, mode.Perm())
	file := quoted(path)
	switch {
	case sole:
		return found(tokenCheck, fail, text+". The token itself is in it, and others may have read it: replace it").
			byHand("rm " + file + " && forkd token new default --scope admin --file " + file)
	case mode.Perm()&0o022 != 0:
		return found(tokenCheck, fail, text+". Others may have added tokens: remove those that are not yours").
			byHand("forkd token ls --file " + file + " # then: chmod 600 " + file)
	}
	return found(tokenCheck, fail, text+". Only hashes of tokens are in it").safely("chmod 600 " + file)
}

func checkCache() finding {
	const check = "cache"
	dir, err := cachedir.Dir()
	if err != nil {
		return found(check, fail, err.Error()).byHand("export FORKD_CACHE=DIR")
	}
	var have []string
	for _, sub := range []string{"kernel", "images"} {
		entries, err := os.ReadDir(filepath.Join(dir, sub))
		n := 0
		for _, e := range entries {
			n += btoi(!strings.HasPrefix(e.Name(), "."))
		}
		if err == nil && n > 0 {
			have = append(have, fmt.Sprintf("%d %s", n, sub))
		}
	}
	if len(have) < 2 {
		return found(check, warn, dir+": no kernel or no image yet").byHand("forkd build base")
	}
	return found(check, pass, dir+": "+strings.Join(have, ", "))
}

// checkDaemon asks the daemon, also about its snapshots and what it can bound sandboxes by.
func checkDaemon(ctx context.Context, url string) []finding {
	const check = "daemon"
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c, where, err := connect(ctx, url, nil)
	if err != nil {
		return []finding{found(check, warn, err.Error())}
	}
	defer c.Close()
	v, err := c.Version(ctx)
	if client.IsStatus(err, 401) {
		return []finding{found(check, fail, fmt.Sprintf("%s: %v", where, err)).byHand("export " + tokenEnv + "=TOKEN")}
	}
	if err != nil {
		return []finding{found(check, warn, fmt.Sprintf("%s: %v", where, err)).byHand(howToStart())}
	}
	answers := found(check, pass, fmt.Sprintf("%s: forkd %s, %s; %s", where, v.Version, v.Accel,
		describeAdmission(v.Admission)))
	if v.NoKVM != "" {
		answers = found(check, fail, where+": its host cannot run VMs: "+v.NoKVM).byHand("forkd doctor # on that host")
	}
	findings := []finding{
		answers,
		judgeVersion(v.Version),
		judgeLimits(v.LimitsMissing),
		judgeLeftAlone(v.LeftAlone),
	}
	list, err := c.Snapshots(ctx)
	if err != nil {
		return append(findings, found(storeCheck, warn, err.Error()))
	}
	return append(findings, judgeStore(list))
}

// systemUnit is where the unit of a packaged daemon is.
const systemUnit = "/usr/lib/systemd/system/forkd.service"

func hasUnit() bool {
	_, err := os.Stat(systemUnit)
	return err == nil
}

// howToStart is the command that starts a daemon on this host.
func howToStart() string {
	if hasUnit() {
		return "systemctl enable --now forkd"
	}
	return "forkd daemon &"
}

func judgeVersion(daemon string) finding {
	const check = "version of the daemon"
	if daemon == version {
		return found(check, pass, version)
	}
	bad := found(check, warn,
		fmt.Sprintf("%s, while this program is %s: what one knows the other may not; start it again, which "+
			"sandboxes survive", daemon, version))
	if hasUnit() {
		return bad.byHand("systemctl restart forkd")
	}
	return bad
}

const storeCheck = "snapshots"

// judgeStore looks for snapshots that are damaged or that nobody can fork from.
func judgeStore(list []client.Snapshot) finding {
	var bad []string
	var broken string
	for _, s := range list {
		switch {
		case s.Warning != "":
			bad = append(bad, s.Warning)
		case s.Status == "failed", s.Status == "ready" && !s.Bootable:
			bad = append(bad, fmt.Sprintf("%s: %s, no sandbox can be forked from it", s.Tag, s.Status))
			broken = s.Tag
		case s.Persist == "failed":
			bad = append(bad, s.Tag+": could not be written to disk, and is gone with the next boot")
		}
	}
	switch {
	case len(bad) == 0:
		return found(storeCheck, pass, count(len(list), "snapshot", "snapshots"))
	case broken != "":
		return found(storeCheck, warn, strings.Join(bad, "; ")).byHand("forkd rmi " + quoted(broken))
	}
	return found(storeCheck, warn, strings.Join(bad, "; ")).byHand("forkd df")
}

// judgeLimits says what a daemon lacks for limits of sandboxes.
func judgeLimits(missing string) finding {
	const check = "limits of sandboxes"
	if missing != "" {
		return found(check, warn, missing+": forks that ask for such limits are refused, others run without").
			byHand("systemd-run --user --scope -p Delegate=yes forkd daemon # or as root")
	}
	return found(check, pass, "memory, processors, threads and disk")
}

// judgeLeftAlone says which sandboxes of an earlier daemon this one has not taken over.
func judgeLeftAlone(left []client.LeftAlone) finding {
	const check = "sandboxes of an earlier daemon"
	if len(left) == 0 {
		return found(check, pass, "none is left alone")
	}
	var reasons, pids []string
	for _, l := range left {
		reasons = append(reasons, l.ID+": "+l.Reason)
		if l.PID != 0 {
			pids = append(pids, fmt.Sprint(l.PID))
		}
	}
	bad := found(check, warn, "could not be taken over, are not listed, and run without a network if they run: "+
		strings.Join(reasons, "; ")+"; docs/runbook.md says how to keep them")
	restart := "start the daemon again"
	if hasUnit() {
		restart = "systemctl restart forkd"
	}
	if len(pids) > 0 {
		return bad.byHand("kill " + strings.Join(pids, " ") + " # gives them up; then " + restart)
	}
	return bad.byHand(restart + " # when what the detail says has been put right")
}

func describeAdmission(a client.Admission) string {
	or := func(n float64) string {
		if n == 0 {
			return "any number of"
		}
		return fmt.Sprintf("at most %g", n)
	}
	return fmt.Sprintf("takes %s sandboxes and %s vCPUs per CPU, keeps %d MiB of memory and %d MiB of disk free",
		or(float64(a.MaxSandboxes)), or(a.VCPUOvercommit), a.MemoryReserveMiB, a.DiskReserveMiB)
}
