package lint

import (
	"slices"
	"strings"
	"testing"
)

// A room is a folder of packages with one purpose: code linked into one program, a protocol between
// two programs, or a format on disk. Its packages are listed in order, lowest first. Each package
// may import only packages before it, the packages in the field imports, and the packages in the
// variable leaves.
type room struct {
	folder   string   // "" for packages directly under internal
	packages []string // below folder; "." is the folder itself
	imports  []string // patterns of other packages of this module that the room may import
	reason   string   // why the room may import nothing else
}

// leaves are small packages that do not depend on forkd. The packages of every room may import
// them, except the packages of the guest's room.
var leaves = []string{"internal/atomicfile", "internal/cachedir", "internal/cleanup", "internal/embedded",
	"internal/gate", "internal/hostroute", "internal/ignore", "internal/linger",
	"internal/pause", "internal/private", "internal/rawcall", "internal/registry", "internal/rootcert",
	"internal/sigstore", "internal/treetar"}

var rooms = []room{
	{
		folder: "internal/proto",
		packages: []string{"codec", "vm", "ctlsock", "frame", "frame/frametest", "agentproto", "envdproto",
			"envdproto/filesystem", "envdproto/process",
			"envdproto/filesystem/filesystemconnect", "envdproto/process/processconnect", "vmmproto", "netproto",
			"imageproto", "diffproto", "filesproto", "sshproto", "feedproto"},
		reason: "a contract holds values and their encoding: both of its sides import it, so it can import neither",
	},
	{
		folder: "internal/jail", packages: []string{".", "filter", "posture", "violation"},
		reason: "both sides of a jail import it: who starts the process, and the process, which it must not make larger",
	},
	{
		folder:   "internal/format",
		packages: []string{"console", "disklayer", "ext4", "memlayer", "outlog", "snapshot", "crypt", "artifact", "record"},
		imports:  []string{"internal/proto/codec", "internal/proto/vm"},
		reason:   "a format outlives the program that wrote it",
	},
	{
		folder: "internal/vmm",
		packages: []string{"kvm", "cpuid", "guestmem", "uffd", "boot", "virtio/virtq", "virtio", "virtio/mmio",
			"virtio/virtiotest", "bareguest", "virtio/rng", "virtio/balloon", "virtio/blk", "virtio/vsock", "virtio/net",
			"regtest", "machine",
			"."},
		imports: []string{"internal/proto/...", "internal/format/...", "internal/jail"},
		reason:  "the VMM is what a guest attacks: it knows neither where snapshots lie nor who asks for them",
	},
	{
		folder: "internal/net",
		packages: []string{"policy", "peek", "inject", "effect", "inspect", "dns", "flowlog", "guesttest", "nettest", "stack",
			"."},
		imports: []string{"internal/proto/...", "internal/jail"},
		reason: "forkd-net parses what hostile guests send: it knows neither files nor sandboxes, only what the daemon " +
			"tells it",
	},
	{
		folder:   "internal/sshmux",
		packages: []string{"."},
		imports:  []string{"internal/proto/sshproto", "internal/jail"},
		reason: "forkd-ssh parses what strangers send: it decides nothing, and knows neither keys of clients nor " +
			"sandboxes",
	},
	{
		folder:   "internal/feed",
		packages: []string{"."},
		imports:  []string{"internal/proto/feedproto", "internal/format/artifact", "internal/jail"},
		reason: "forkd-feed decodes what a registry has sent: it fetches nothing, and knows neither snapshots nor " +
			"sandboxes",
	},
	{
		folder: "internal/guest",
		packages: []string{"kmsg", "reap", "trust", "disk", "volume", "userenv", "pid1", "nic", "forkhook",
			"generators", "apply", "envd", "eval", "agent", "unpack", "difftree", "volfiles", "sftpd"},
		imports: []string{"internal/proto/...", "internal/rawcall", "internal/treetar"},
		reason:  "what runs in a guest is in every guest's memory, and a hostile guest can read it",
	},
	{
		folder: "internal/host",
		packages: []string{"invalid", "debt", "excerpt", "failure", "loglimit", "event", "writers/writertest", "writers",
			"filedigest", "fileid", "turns", "background", "sparse", "firstwrites", "phase", "reserve", "backlog", "owner",
			"unique", "procmem", "byage", "hardlink", "framequeue",
			"agentclient", "cgroup", "process", "feeder", "netclient", "vmmclient", "vault", "store", "atrest", "hotlist",
			"vmpool", "vmpool/suite", "vmfake", "state",
			"identity", "chain", "helpervm", "imagevm", "diff", "hub", "bake", "admit", "ledger", "hook", "conlog",
			"tally", "idle", "unwatched", "volume", "mounts", "volfiles", "sandbox", "move", "history",
			"workspace", "recent", "tenancy",
			"fanout"},
		imports: []string{"internal/proto/...", "internal/format/...", "internal/jail/..."},
		reason: "the daemon's side knows VMs by contract only and never runs a guest: it owns files and processes, and " +
			"its death must not be a VM's",
	},
	{
		folder: "internal/build",
		packages: []string{"debpkg", "kmod", "kernelimage", "initramfs", "image", "plan", "dockerfile",
			"recipeplan"},
		imports: []string{"internal/proto/...", "internal/format/..."},
		reason:  "an image is built before there is a sandbox or a daemon",
	},
	{
		folder:   "internal/emu",
		packages: []string{"machineapi", "debkernel", "debqemu", "bochs", "machined", "tcghost"},
		imports:  []string{"internal/build/...", "internal/proto/vm"},
		reason:   "the emulated host runs the product; it is no part of it",
	},
	{
		folder: "internal/daemon",
		packages: []string{
			"stamp",
			"plainhttp",
			"audit",
			"auth",
			"metrics",
			"tracing",
			"inbound",
			"once",
			"face",
			"webhook",
			"sshd",
			"mcphttp",
			"viewhttp",
			"ocihttp",
			"build",
			"template",
			"v1",
			"e2b",
			"docker",
			"front",
			".",
		},
		imports: []string{
			"api/...",
			"client",
			"internal/compat05/agent05",
			"internal/mcp",
			"internal/ui",
			"internal/host/...",
			"internal/build/...",
			"internal/proto/...",
			"internal/format/...",
			"internal/jail",
		},
		reason: "the daemon's faces talk to sandboxes and the store, and do not know who calls them. The tools for models and " +
			"the view are clients of one of them",
	},
	{
		folder:   "internal/cluster",
		packages: []string{"placement", "router"},
		imports: []string{"api/v1", "internal/daemon/face", "internal/daemon/inbound", "internal/daemon/metrics",
			"internal/format/snapshot", "internal/host/invalid", "internal/host/sandbox", "internal/host/vmpool"},
		reason: "a router is a client of daemons, and answers in their words: it has no store, no token file and no sandbox",
	},
	{
		folder:   "internal/cli",
		packages: []string{"."},
		imports: []string{"api/v1", "client", "internal/compat05/...", "internal/dirsync", "internal/mcp", "internal/ui",
			"internal/daemon", "internal/daemon/auth", "internal/daemon/inbound", "internal/cluster/...",
			"internal/build/...", "internal/doctor", "internal/emu/...", "internal/proto/imageproto",
			"internal/proto/vm",
			"internal/vmm/kvm",
			"recipes"},
		reason: "the command line has no back door: everything it does to sandboxes goes through the REST API. It imports " +
			"the daemon to start it, which is told whether KVM works, and the file of its tokens",
	},
	{
		folder:   "internal/doctor",
		packages: []string{"."},
		imports: []string{"client", "internal/daemon", "internal/daemon/auth", "internal/emu/machineapi",
			"internal/emu/tcghost", "internal/jail", "internal/vmm/kvm"},
		reason: "it tries what a daemon needs of this host, and asks a daemon as any client does",
	},
	{
		folder:   "internal/vmtest",
		packages: []string{".", "opcount", "prepare", "testrun", "usable"},
		imports:  []string{"internal/build/...", "internal/emu/...", "internal/proto/vm", "internal/vmm/kvm"},
		reason:   "it prepares tests; what they test they import themselves",
	},
	{folder: "internal/lint", packages: []string{"."}, reason: "it reads the code and runs none"},
	{folder: "recipes", packages: []string{"."}, reason: "it holds files"},
	{
		folder: "api", packages: []string{".", "v1"},
		reason: "a contract that other modules import: it holds the messages and their document, and nothing that acts",
	},
	{
		folder: "client", packages: []string{"."}, imports: []string{"api/v1", "internal/ignore"},
		reason: "other modules import it: their programs contain everything that it imports",
	},
	{
		folder: "internal/compat05", packages: []string{"agent05", "."}, imports: []string{"api/v1", "client"},
		reason: "an old protocol over whatever reaches a sandbox",
	},
	{
		folder: "internal/dirsync", packages: []string{"."}, imports: []string{"client"},
		reason: "it reaches a sandbox as any client does: the daemon gets no paths of a client's host",
	},
	{
		folder: "internal/mcp", packages: []string{"."}, imports: []string{"client", "api/v1"},
		reason: "what models may do is what a client of the REST API may do: no back door",
	},
	{folder: "internal/ui", packages: []string{"."},
		reason: "a browser may do what the client does whose transport or token it gets: it knows nothing else of forkd"},
	{folder: "internal/apitest", packages: []string{"."}, imports: []string{"api"},
		reason: "it checks traffic, not what causes it"},
	{
		folder: "internal/apirig", packages: []string{"."},
		imports: []string{"api/v1", "client", "internal/apitest", "internal/build/dockerfile", "internal/daemon/...",
			"internal/host/...", "internal/format/disklayer", "internal/format/snapshot",
			"internal/jail", "internal/proto/agentproto", "internal/proto/diffproto"},
		reason: "it prepares tests of the API; the program that is its guests' agent is for them to bring",
	},
}

// programs are above all rooms. No other package may import them.
var programs = []string{"cmd/...", "bench/...", "examples/...", "packaging/...", "test/..."}

func TestEveryPackageHasARoom(t *testing.T) {
	type place struct {
		room  *room
		order int
	}
	places := map[string]place{}
	for i := range rooms {
		for j, name := range rooms[i].packages {
			path := strings.TrimSuffix(rooms[i].folder+"/"+name, "/.")
			places[path] = place{&rooms[i], j}
		}
	}
	seen := map[string]bool{}
	for _, p := range list(t) {
		seen[p.path()] = true
		own, ok := places[p.path()]
		leaf := slices.Contains(leaves, p.path())
		if matchAny(programs, p.path()) {
			continue
		}
		if !ok && !leaf {
			t.Errorf("%s has no room: add it to the table in deps_test.go", p.path())
			continue
		}
		for _, imp := range p.Imports {
			to, ours := strings.CutPrefix(imp, module)
			if !ours {
				continue
			}
			switch other, known := places[to]; {
			case matchAny(programs, to):
				t.Errorf("%s imports %s, a part of a program", p.path(), to)
			case leaf:
				t.Errorf("%s imports %s: a leaf knows nothing of forkd", p.path(), to)
			case known && other.room == own.room:
				if other.order >= own.order {
					t.Errorf("%s imports %s, which stands above it in %s", p.path(), to, own.room.folder)
				}
			case slices.Contains(leaves, to) && own.room.folder != "internal/guest" && own.room.folder != "client":
			case !matchAny(own.room.imports, to):
				t.Errorf("%s imports %s: %s", p.path(), to, own.room.reason)
			}
		}
	}
	for p := range places {
		if !seen[p] {
			t.Errorf("%s stands in the table but not in the tree", p)
		}
	}
}

// rule forbids packages from depending on other packages. A pattern is an import path, or
// "path/..." for a path and everything below it. Paths of this module's packages are given without
// the module.
type rule struct {
	from, to []string
	except   []string // patterns of packages that are exempt
	direct   bool     // whether only direct imports are checked
	reason   string
}

var rules = []rule{
	{
		from: []string{"cmd/forkd-vmm"},
		to: []string{"net", "net/...", "encoding/json", "encoding/gob", "os/exec", "crypto/tls",
			"text/template", "google.golang.org/...", "connectrpc.com/...", "github.com/spf13/...",
			"github.com/prometheus/...", "go.opentelemetry.io/..."},
		reason: "a VMM process must start in a few milliseconds and cost about 1 MiB, and it is what a guest attacks: " +
			"it talks over donated descriptors only",
	},
	{
		from: []string{"cmd/forkd-vmm"},
		to: []string{"internal/format/snapshot", "internal/host/...", "internal/build/...", "internal/daemon/...",
			"internal/emu/...", "internal/guest/...", "internal/cli"},
		reason: "the VMM does not know where snapshots are or who asks for them; it could not be jailed otherwise",
	},
	{
		from: []string{"cmd/forkd-agent", "cmd/forkd-machined", "cmd/forkd-unpack",
			"cmd/forkd-diff", "cmd/forkd-files", "cmd/forkd-sftp"},
		to: []string{"internal/vmm/...", "internal/host/...", "internal/format/...", "internal/daemon/...",
			"internal/build/...", "github.com/spf13/...", "github.com/prometheus/...", "go.opentelemetry.io/..."},
		reason: "what runs in a guest is in every guest's memory, and a hostile guest can read it",
	},
	{
		from: []string{"cmd/forkd-net"},
		to: []string{"os/exec", "internal/host/...", "internal/format/...", "internal/daemon/...", "internal/build/...",
			"internal/vmm/...", "internal/guest/...", "internal/cli", "go.opentelemetry.io/..."},
		reason: "forkd-net parses hostile frames: it has no program to start, and neither store nor sandboxes to reach",
	},
	{
		from: []string{"cmd/forkd-feed"},
		to: []string{"os/exec", "net", "net/http", "internal/host/...", "internal/daemon/...", "internal/build/...",
			"internal/vmm/...", "internal/guest/...", "internal/net/...", "internal/cli"},
		reason: "forkd-feed decodes what a registry has sent: it has no program to start, and no network",
	},
	{
		from: []string{"cmd/forkd-ssh"},
		to: []string{"os/exec", "net/http", "encoding/json", "internal/host/...", "internal/format/...",
			"internal/daemon/...", "internal/build/...", "internal/vmm/...", "internal/guest/...", "internal/net/...",
			"internal/cli"},
		reason: "forkd-ssh parses what strangers send, one process for each of them: it has no program to start, and " +
			"neither keys nor sandboxes to reach",
	},
	{
		from:   []string{"internal/daemon/...", "internal/host/..."},
		to:     []string{"internal/vmm/...", "internal/guest/...", "internal/emu/...", "internal/sshmux", "internal/cli"},
		reason: "the daemon never runs a guest: it owns files and processes, and its death must not be a VM's",
	},
	{
		from: []string{"..."}, to: []string{"internal/vmm"}, direct: true,
		except: []string{"cmd/forkd-vmm"},
		reason: "a VMM is a process of its own, in its jail; the one without is for a measurement only",
	},
	{
		from: []string{"internal/vmm/virtio/..."}, to: []string{"internal/vmm/kvm", "net/http", "encoding/json"},
		reason: "devices are tested without KVM: they hold an interrupt and guest memory, nothing else",
	},
	{
		from: []string{"..."}, to: []string{"unsafe"}, direct: true,
		except: []string{"internal/jail", "internal/rawcall", "internal/vmm/kvm", "internal/vmm/guestmem",
			"internal/vmm/uffd", "internal/guest/disk", "internal/host/writers/writertest",
			"internal/proto/envdproto/filesystem", "internal/proto/envdproto/process", "test/guest/torture"},
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
					continue // the standard library
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

// match reports whether path matches pattern: "a/..." matches a and everything below it, and "..."
// matches everything.
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
