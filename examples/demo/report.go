package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/forkd/forkd/client"
)

// figures are the measurements of the demo. Times are in milliseconds. Memory is in KiB: the mean
// over the children, while they are idle after the fork.
type figures struct {
	Children   int     `json:"children"`
	Confirmed  int     `json:"confirmed"`
	Correct    int     `json:"correct"`
	Accel      string  `json:"accel"`        // how the VMs ran: "kvm", or "tcg" for software emulation
	VMMWallMS  float64 `json:"vmm_wall_ms"`  // from the request until the vCPUs of the last child run
	ForkWallMS float64 `json:"fork_wall_ms"` // from the request until the agent of the last child has confirmed
	ChildP50MS float64 `json:"child_p50_ms"` // median time from the request until a child has confirmed
	ChildP99MS float64 `json:"child_p99_ms"` //
	PSSKiB     uint64  `json:"pss_kib_per_child"`
	PrivateKiB uint64  `json:"private_kib_per_child"`
	EvalWarmMS float64 `json:"eval_warm_ms"`
	ExecColdMS float64 `json:"exec_cold_ms"`

	Network *netFigures    `json:"network"` // null if this step was skipped
	Branch  *branchFigures `json:"branch"`

	vmmPrivateKiB, guestDirtyKiB uint64 // parts of the memory figures, for the report
}

func (f *figures) setMemory(stats []client.Stats) {
	mean := func(field func(client.Stats) uint64) uint64 {
		total := uint64(0)
		for _, s := range stats {
			total += field(s)
		}
		return total / uint64(max(1, len(stats)))
	}
	f.PSSKiB = mean(func(s client.Stats) uint64 { return s.PSS })
	f.PrivateKiB = mean(func(s client.Stats) uint64 { return s.Private })
	f.vmmPrivateKiB = mean(func(s client.Stats) uint64 { return s.VMMPrivate })
	f.guestDirtyKiB = mean(func(s client.Stats) uint64 { return s.GuestDirty })
}

// percentile returns the smallest of the given values that is at least as large as p percent of
// them. If there are no values, it returns 0.
func percentile(values []float64, p float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, int(math.Ceil(p/100*float64(len(sorted))))-1)]
}

func word(b bool, yes, no string) string {
	if b {
		return yes
	}
	return no
}

// report prints the measurements.
func (d *demo) report(w io.Writer) error {
	f := d.figures
	host := "hardware KVM"
	if f.Accel != "kvm" {
		host = "software emulation (" + f.Accel + "): times say nothing about a host with hardware KVM, which is far faster"
	}
	var b strings.Builder
	section := func(name string) { fmt.Fprintf(&b, "\n%s\n", name) }
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "  %-35s"+format+"\n", append([]any{name}, args...)...)
	}
	fmt.Fprintf(&b, "\nforkd demo: %d children of one warm parent, %s\n", f.Children, d.where.name)
	line("VMs ran on", "%s", host)
	section("Stages")
	for _, s := range d.stages {
		fmt.Fprintf(&b, "  %8.1f s  %s: %s\n", s.took.Seconds(), s.name, s.detail)
	}
	section("Fork, from the request")
	line("all vCPUs entered", "%.1f ms", f.VMMWallMS)
	line("last child confirmed by its agent", "%.1f ms", f.ForkWallMS)
	line("a child confirmed", "%.1f ms p50, %.1f ms p99", f.ChildP50MS, f.ChildP99MS)
	section("Memory per idle child, mean, sampled while all were alive")
	line("Pss of its VMM process", "%d KiB", f.PSSKiB)
	line("private", "%d KiB, %d KiB of it the VMM's own", f.PrivateKiB, f.vmmPrivateKiB)
	line("guest pages written since the fork", "%d KiB", f.guestDirtyKiB)
	section("numpy expression in a child, median")
	line("eval in the warm interpreter", "%.1f ms", f.EvalWarmMS)
	line("exec of a new python3", "%.1f ms", f.ExecColdMS)
	if n := f.Network; n != nil {
		section("Network of a child that may reach " + n.Rule + " and nothing else")
		line("the server there", "%s", word(n.Allowed, "answered", "DID NOT ANSWER"))
		line("another server beside it", "%s", word(n.Refused, "was refused ("+n.Reason+")", "WAS NOT REFUSED"))
		line("that one, when it was allowed too", "%s", word(n.Opened, "answered", "DID NOT ANSWER"))
	}
	br := f.Branch
	section(fmt.Sprintf("Branch (%s) of a computing child, and %d children of the branch", br.Mode, branchChildren))
	line("the source stood still", "%.1f ms; it had written %d KiB", br.PauseMS, br.DirtyBytes>>10)
	line("children could start", "%.1f ms after the request; all confirmed %.1f ms after theirs", br.ReadyMS,
		br.ForkWallMS)
	line("inherited", "memory %d, files %d, running process %d of %d", br.Memory, br.Files, br.Process, branchChildren)
	line("went three different ways", "%d of %d answers are right", br.Paths, branchChildren)
	section("Answers")
	line("confirmed children", "%d of %d", f.Confirmed, f.Children)
	line("right", "%d of %d", f.Correct, f.Children)
	for _, s := range d.wrong[:min(len(d.wrong), 5)] {
		line("wrong", "%s", s)
	}
	section("What runs now")
	line("children", "none, they were removed")
	line(d.where.name, "still up; try: %s fork %s -n 3", d.shown, d.tag)
	if d.where.stop != "" {
		line("to stop it", "%s", d.where.stop)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
