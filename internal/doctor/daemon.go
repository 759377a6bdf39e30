package doctor

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/forkd/forkd/client"
)

// answer holds the daemon's answers.
type answer struct {
	reached      Finding // whether the daemon answers
	version      *client.Version
	snapshots    []client.Snapshot
	snapshotsErr error
}

// daemonLimit bounds all requests to the daemon.
const daemonLimit = 5 * time.Second

// askDaemon asks the daemon for its state, its snapshots and the limits that it can enforce.
func (h *Host) askDaemon() answer {
	ctx, cancel := context.WithTimeout(h.ctx, daemonLimit)
	defer cancel()
	c, where, err := h.Connect(ctx)
	if err != nil {
		return answer{reached: warn(err.Error())}
	}
	defer c.Close()
	v, err := c.Version(ctx)
	switch {
	case client.IsStatus(err, 401):
		return answer{reached: fail("%s: %v", where, err).by(byHand("export FORKD_TOKEN=TOKEN"))}
	case err != nil:
		return answer{reached: warn("%s: %v", where, err).by(byHand(howToStart()))}
	}
	a := answer{version: &v}
	a.reached = pass("%s: forkd %s, %s; %s", where, v.Version, v.Accel, DescribeAdmission(v.Admission))
	if v.NoKVM != "" {
		a.reached = fail(where + ": its host cannot run VMs: " + v.NoKVM).by(byHand("forkd doctor # on that host"))
	}
	a.snapshots, a.snapshotsErr = c.Snapshots(ctx)
	return a
}

func (h *Host) answers() Finding { return h.daemon.reached }

// HasUnit reports whether the unit of a packaged daemon exists.
func HasUnit() bool {
	_, err := os.Stat("/usr/lib/systemd/system/forkd.service")
	return err == nil
}

// howToStart returns the command that starts a daemon on this host.
func howToStart() string {
	if HasUnit() {
		return "systemctl enable --now forkd"
	}
	return "forkd daemon &"
}

// of(judge) returns a probe that calls judge with the daemon's answers. If no daemon answers, the
// check does not apply.
func of(judge func(*Host, client.Version) Finding) func(*Host) Finding {
	return func(h *Host) Finding {
		if h.daemon.version == nil {
			return Finding{}
		}
		return judge(h, *h.daemon.version)
	}
}

func (h *Host) daemonVersion(v client.Version) Finding {
	if v.Version == h.Version {
		return pass(h.Version)
	}
	bad := warn("%s, while this program is %s: one may lack features of the other; restart the daemon (sandboxes keep running)",
		v.Version, h.Version)
	if HasUnit() {
		return bad.by(byHand("systemctl restart forkd"))
	}
	return bad
}

// snapshots reports snapshots that are damaged or cannot be forked.
func (h *Host) snapshots(client.Version) Finding {
	if err := h.daemon.snapshotsErr; err != nil {
		return warn(err.Error())
	}
	var bad []string
	var broken string
	for _, s := range h.daemon.snapshots {
		switch {
		case s.Warning != "":
			bad = append(bad, s.Warning)
		case s.Status == "failed", s.Status == "ready" && !s.Bootable:
			bad = append(bad, fmt.Sprintf("%s: %s, no sandbox can be forked from it", s.Tag, s.Status))
			broken = s.Tag
		case s.Persist == "failed":
			bad = append(bad, s.Tag+": could not be written to disk, and is lost at the next boot")
		}
	}
	switch n := len(h.daemon.snapshots); {
	case broken != "":
		return warn(strings.Join(bad, "; ")).by(byHand("forkd rmi " + quoted(broken)))
	case len(bad) > 0:
		return warn(strings.Join(bad, "; ")).by(byHand("forkd df"))
	case n == 1:
		return pass("1 snapshot")
	default:
		return pass("%d snapshots", n)
	}
}

// limits reports limits of sandboxes that the daemon cannot enforce.
func (h *Host) limits(v client.Version) Finding {
	if v.LimitsMissing != "" {
		return warn(DescribeLimits(v))
	}
	return pass(DescribeLimits(v))
}

// DescribeLimits describes the limits of sandboxes that the daemon enforces.
func DescribeLimits(v client.Version) string {
	if v.LimitsMissing != "" {
		return v.LimitsMissing + ": forks that ask for such limits are refused, others run without them"
	}
	return "memory, processors, threads and disk"
}

// leftAlone reports the sandboxes of an earlier daemon that the present daemon has not taken over.
func (h *Host) leftAlone(v client.Version) Finding {
	var reasons, pids []string
	for _, l := range v.LeftAlone {
		reasons = append(reasons, l.ID+": "+l.Reason)
		if l.PID != 0 {
			pids = append(pids, fmt.Sprint(l.PID))
		}
	}
	if len(reasons) == 0 {
		return pass("none is left alone")
	}
	bad := warn("could not be taken over, are not listed, and run without a network if they run: %s; "+
		"docs/runbook.md says how to keep them", strings.Join(reasons, "; "))
	restart := "start the daemon again"
	if HasUnit() {
		restart = "systemctl restart forkd"
	}
	if len(pids) > 0 {
		return bad.by(byHand("kill " + strings.Join(pids, " ") + " # gives them up; then " + restart))
	}
	return bad.by(byHand(restart + " # after you have solved the problems in the detail"))
}

// DescribeAdmission describes how many sandboxes the daemon admits.
func DescribeAdmission(a client.Admission) string {
	or := func(n float64) string {
		if n == 0 {
			return "any number of"
		}
		return fmt.Sprintf("at most %g", n)
	}
	return fmt.Sprintf("takes %s sandboxes and %s vCPUs per CPU, keeps %d MiB of memory and %d MiB of disk free",
		or(float64(a.MaxSandboxes)), or(a.VCPUOvercommit), a.MemoryReserveMiB, a.DiskReserveMiB)
}
