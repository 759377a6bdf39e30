package lint

import (
	"slices"
	"strings"
	"testing"
)

// tiers orders the packages: a package may import only packages of lower tiers, so no cycle of ideas can creep in, and
// what stands low can be read without what stands above it. A new package must be put somewhere here.
var tiers = [][]string{
	// 0: values, encodings and system calls. They know nothing of forkd but themselves.
	{
		"internal/cachedir", "internal/cleanup", "internal/cpuid", "internal/debpkg", "internal/disklayer",
		"internal/embedded", "internal/guestmem", "internal/initramfs", "internal/kernelimage", "internal/kmod",
		"internal/kvm", "internal/procmem", "internal/wire", "internal/envdproto", "internal/envdproto/filesystem",
		"internal/envdproto/process", "internal/agent/kmsg", "internal/agent/reap", "internal/agent/userenv",
		"internal/tcghost/machineapi", "internal/vmm/console", "internal/audit", "internal/auth", "internal/lint",
		"recipes", "client",
	},
	// 1: one idea each over guest memory, layers or the guest's processes.
	{
		"internal/boot", "internal/memlayer", "internal/uffd", "internal/virtio/virtq",
		"internal/tcghost/debkernel", "internal/tcghost/debqemu",
		"internal/envdproto/filesystem/filesystemconnect", "internal/envdproto/process/processconnect",
		"internal/agent/eval", "internal/agent/pid1", "internal/agentproto",
	},
	// 2: formats and contracts.
	{"internal/snapshot", "internal/virtio", "internal/vmm/vmmproto", "internal/agent/envd", "internal/agentclient"},
	// 3: devices; where snapshots and images are kept; the ends of the control socket.
	{
		"internal/virtio/blk", "internal/virtio/mmio", "internal/virtio/rng", "internal/virtio/vsock",
		"internal/vmm/ctlsock", "internal/store", "internal/image",
	},
	// 4: whole machines, seen from inside (machine, agent) and from outside (vmmclient, tcghost).
	{
		"internal/machine", "internal/virtio/virtiotest", "internal/agent", "internal/vmm/vmmclient",
		"internal/tcghost", "internal/tcghost/machined",
	},
	// 5: the VMM process; what users hold.
	{"internal/vmm", "internal/sandbox", "internal/vmtest"},
	// 6: programs that make and run VM tests.
	{"internal/vmtest/prepare", "internal/vmtest/testrun", "internal/vmtest/usable"},
	// 7: faces of the sandboxes.
	{"internal/daemon/v1", "internal/metrics"},
	// 8: the one place where the daemon's constructors meet.
	{"internal/daemon"},
	// 9: the command line.
	{"internal/cli"},
}

// tops are directories of programs, which stand above all tiers; nothing outside them imports from them.
var tops = []string{"cmd/...", "bench/...", "test/..."}

func TestImportsGoDown(t *testing.T) {
	tier := map[string]int{}
	for i, paths := range tiers {
		for _, p := range paths {
			if _, twice := tier[p]; twice {
				t.Errorf("%s stands in the table twice", p)
			}
			tier[p] = i
		}
	}
	seen := map[string]bool{}
	for _, p := range list(t) {
		own, ok := tier[p.path()]
		seen[p.path()] = true
		if matchAny(tops, p.path()) {
			continue
		}
		if !ok {
			t.Errorf("%s has no tier: add it to the table in deps_test.go", p.path())
			continue
		}
		for _, imp := range p.Imports {
			to, ours := strings.CutPrefix(imp, module)
			if ours && matchAny(tops, to) {
				t.Errorf("%s imports %s, a part of a program", p.path(), to)
			} else if ours && tier[to] >= own {
				t.Errorf("%s (tier %d) imports %s (tier %d)", p.path(), own, to, tier[to])
			}
		}
	}
	for p := range tier {
		if !seen[p] {
			t.Errorf("%s stands in the table but not in the tree", p)
		}
	}
}

// rule forbids packages to depend on others. A pattern is an import path (ours without the module), or a path and all
// below it ("path/...").
type rule struct {
	from, to []string
	except   []string // packages among from that may
	direct   bool     // only imports count, not what they import
	reason   string
}

var rules = []rule{
	{
		from: []string{"cmd/forkd-vmm"},
		to: []string{"net", "net/...", "encoding/json", "encoding/gob", "os/exec", "crypto/tls",
			"text/template", "google.golang.org/...", "connectrpc.com/...", "github.com/spf13/...",
			"github.com/prometheus/..."},
		reason: "a VMM process must start in a few milliseconds and cost about 1 MiB, and it is what a guest attacks: " +
			"it talks over donated descriptors only",
	},
	{
		from: []string{"cmd/forkd-vmm"},
		to: []string{"internal/snapshot", "internal/store", "internal/image", "internal/sandbox", "internal/daemon/...",
			"internal/agentclient", "internal/cli", "internal/tcghost/..."},
		reason: "the VMM does not know where snapshots are or who asks for them; it could not be jailed otherwise",
	},
	{
		from: []string{"cmd/forkd-agent", "cmd/forkd-machined"},
		to: []string{"internal/kvm", "internal/machine", "internal/vmm/...", "internal/store", "internal/snapshot",
			"internal/sandbox", "internal/daemon/...", "internal/image", "github.com/spf13/...",
			"github.com/prometheus/..."},
		reason: "what runs in a guest is in every guest's memory, and a hostile guest can read it",
	},
	{
		from: []string{"internal/daemon/...", "internal/sandbox", "internal/store", "internal/metrics"},
		to: []string{"internal/kvm", "internal/machine", "internal/uffd", "internal/virtio/...", "internal/vmm",
			"internal/tcghost/..."},
		reason: "the daemon never runs a guest: it owns files and processes, and its death must not be a VM's",
	},
	{
		from: []string{"..."}, to: []string{"internal/daemon"}, except: []string{"internal/cli"}, direct: true,
		reason: "the daemon is the top; only the command `forkd daemon` starts it",
	},
	{
		from: []string{"internal/cli"},
		to: []string{"internal/sandbox", "internal/store", "internal/snapshot", "internal/agentclient",
			"internal/vmm/...", "internal/daemon/v1"},
		direct: true,
		reason: "the command line has no back door: everything it does to sandboxes goes through the REST API",
	},
	{
		from: []string{"client"}, to: []string{"internal/..."},
		reason: "the client is for other modules, which cannot import what is internal",
	},
	{
		from: []string{"internal/virtio/..."}, to: []string{"internal/kvm", "net/http", "encoding/json"},
		reason: "devices are tested without KVM: they hold an interrupt and guest memory, nothing else",
	},
	{
		from: []string{"..."}, to: []string{"unsafe"}, direct: true,
		except: []string{"internal/kvm", "internal/guestmem", "internal/uffd", "internal/envdproto/filesystem",
			"internal/envdproto/process", "test/guest/torture"},
		reason: "ioctls and mappings are the places for it (the two of envdproto are generated, torture is a test's guest " +
			"program); devices use guestmem's bounds-checked views",
	},
}

func TestForbiddenImports(t *testing.T) {
	pkgs := list(t)
	for _, r := range rules {
		matched := false
		for _, p := range pkgs {
			if !matchAny(r.from, p.path()) || slices.Contains(r.except, p.path()) {
				continue
			}
			matched = true
			deps := p.Deps
			if r.direct {
				deps = p.Imports
			}
			for _, dep := range deps {
				own, ours := strings.CutPrefix(dep, module)
				if !ours && strings.HasPrefix(dep, "internal/") {
					continue // the standard library's
				}
				if matchAny(r.to, own) {
					t.Errorf("%s depends on %s: %s", p.path(), own, r.reason)
				}
			}
		}
		if !matched {
			t.Errorf("no package is like %q: the rule checks nothing", r.from)
		}
		for _, e := range r.except {
			if !slices.ContainsFunc(pkgs, func(p pkg) bool { return p.path() == e }) {
				t.Errorf("the exception %s is no package", e)
			}
		}
	}
}

func matchAny(patterns []string, path string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return match(p, path) })
}

// match reports whether path is what pattern says; "a/..." is a and everything below it, "..." everything.
func match(pattern, path string) bool {
	below, wild := strings.CutSuffix(pattern, "...")
	if !wild {
		return path == pattern
	}
	return strings.HasPrefix(path, below) || path == strings.TrimSuffix(below, "/")
}

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		pattern, path string
		want          bool
	}{
		{"net", "net", true}, {"net", "net/http", false}, {"net/...", "net/http", true}, {"net/...", "net", true},
		{"net/...", "network", false}, {"...", "cmd/forkd", true},
	} {
		if got := match(c.pattern, c.path); got != c.want {
			t.Errorf("match(%q, %q) = %v", c.pattern, c.path, got)
		}
	}
}
