package cli

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// The keys of groups are words that can precede a command in the CLIs of docker and E2B, such as
// "container". If such a command has another name here, the value of the key maps the command to
// that name.
var groups = map[string]map[string]string{
	"container": {"list": "ls", "prune": "kill"},
	"image":     {"ls": "images", "list": "images", "rm": "rmi"},
	"system":    {},
	"sandbox":   ofSandboxes,
	"sbx":       ofSandboxes,
	"template":  ofTemplates,
	"tpl":       ofTemplates,
}

var (
	ofSandboxes = map[string]string{"list": "ls", "create": "fork", "connect": "shell", "metrics": "stats"}
	ofTemplates = map[string]string{"list": "images", "ls": "images", "delete": "rmi", "rm": "rmi"}
)

// ungrouped removes a key of groups from the beginning of a command line, and translates the
// command that follows.
func ungrouped(args []string) []string {
	if len(args) < 2 || strings.HasPrefix(args[1], "-") {
		return args
	}
	renamed, ok := groups[args[0]]
	if !ok {
		return args
	}
	name := args[1]
	if here, ok := renamed[name]; ok {
		name = here
	}
	return slices.Concat([]string{name}, args[2:])
}

// sameFlags maps names of flags to forkd's names. It has the names that docker or forkd 0.5 uses,
// and names that users may guess.
var sameFlags = map[string]string{
	"idle-timeout":     "idle-timeout-secs",
	"interactive":      "stdin",
	"memory-limit-mib": "memory", // used by forkd 0.5
	"network":          "net",
	"timeout-secs":     "timeout", // used by forkd 0.5
	"ttl":              "ttl-secs",
	"workdir":          "cwd",
}

func normalFlag(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	if here, ok := sameFlags[name]; ok {
		name = here
	}
	return pflag.NormalizedName(name)
}

// noEffect registers a hidden flag that has no effect. Other programs have such a flag, and its
// effect is the default of forkd.
func noEffect(f *pflag.FlagSet, name, short, usage string) {
	f.BoolP(name, short, false, usage)
	_ = f.MarkHidden(name) // fails only for a flag that does not exist
}

// noEffectTime is like noEffect, but for a flag whose value is a time.
func noEffectTime(f *pflag.FlagSet, name, short, usage string) {
	f.VarP(new(secondsValue), name, short, usage)
	_ = f.MarkHidden(name) // fails only for a flag that does not exist
}

// Hints for several flags.
const (
	noVolumes = "'forkd run' and 'forkd fork' mount volumes with -v NAME:/PATH, and 'forkd cp -r DIR ID:DIR' copies files"
	useJQ     = "use -o json, and jq"
	ownRoot   = "a sandbox is a machine of its own, in which root may do anything: leave it out"
	inGuest   = "change it in the sandbox: 'forkd exec ID COMMAND'"
	inRecipe  = "a recipe says it: docs/recipes.md"
	whichHost = "give --daemon-url after the command, or set FORKD_URL"
)

// unknownFlags maps flags of docker or forkd 0.5 to hints for doing the same here. If a hint is
// only for a single command, the key is the command and the flag.
var unknownFlags = map[string]string{
	"add-host":      inGuest,
	"build q":       useJQ,
	"build ssh":     "fetch the source on the host, and COPY it",
	"build push":    "'forkd push TAG REGISTRY/NAME:TAG' sends a snapshot to a registry",
	"build load":    "the snapshot is in the daemon's store when it is built",
	"cache-from":    "builds find the steps of earlier builds of the same daemon by themselves",
	"cache":         "FORKD_CACHE says where builds keep what they make",
	"branch a":      "a snapshot has no author and no message: --label NAME=VALUE can hold them",
	"branch c":      inRecipe,
	"branch m":      "a snapshot has no author and no message: --label NAME=VALUE can hold them",
	"cap-add":       ownRoot,
	"cap-drop":      "give the command a user: --user",
	"child":         "name the sandbox: 'forkd ls' lists them",
	"cidfile":       "'forkd run -d' prints the id",
	"context":       whichHost,
	"cp a":          "what is copied in belongs to the default user: 'forkd exec ID chown' changes that",
	"cp L":          "links are copied as links: copy what they lead to",
	"cpu-shares":    "use --cpu-weight, whose default is 100",
	"D":             "the daemon's log has its errors",
	"daemon-token":  "the token comes from the variable FORKD_TOKEN: other users can read command lines",
	"debug":         "the daemon's log has its errors",
	"detach-keys":   "the keys are Ctrl-P Ctrl-Q",
	"device":        "sandboxes have no devices of the host",
	"digests":       "'forkd verify TAG' compares a snapshot with its digests",
	"dns":           "'forkd daemon --resolver ADDRESS' sets the DNS server of sandboxes",
	"entrypoint":    "the command comes after the recipe: 'forkd run RECIPE -- COMMAND'",
	"extra":         inRecipe,
	"f":             useJQ,
	"filter":        "--label NAME=VALUE chooses sandboxes; use -o json and jq for other filters",
	"format":        useJQ,
	"fork timeout":  "--ttl-secs deletes a sandbox after a time, --idle-timeout-secs suspends an idle one",
	"gpus":          "sandboxes have no devices of the host",
	"H":             whichHost,
	"history q":     useJQ,
	"host":          whichHost,
	"hostname":      "host names are made of ids: 'forkd fork --hostname-prefix NAME'",
	"image":         "'forkd build docker://IMAGE' makes a snapshot of a container image",
	"json":          "use -o json",
	"kernel":        "'forkd build DIR --kernel FILE' makes a snapshot with a kernel of your own",
	"kill s":        "'forkd signal ID PID SIGNAL' sends a signal to a process in a sandbox",
	"ls n":          "'forkd ls -q | tail -n 5' lists the newest",
	"ls s":          "'forkd df' shows disk usage",
	"mount":         noVolumes,
	"name":          "sandboxes have ids: give --label name=NAME, or use 'forkd workspace create NAME'",
	"no-stdin":      "without -i the command gets no standard input",
	"p":             "use 'forkd port-forward ID PORT' when the sandbox runs",
	"platform":      "sandboxes are of the host's architecture",
	"publish":       "use 'forkd port-forward ID PORT' when the sandbox runs",
	"pull":          "'forkd cache prune' removes images, and the next build pulls again",
	"read-only":     "what a sandbox writes is its own, and 'forkd rollback ID' undoes it",
	"resume a":      "'forkd attach ID' follows a process of the sandbox",
	"resume i":      "'forkd attach -it ID' follows a process of the sandbox",
	"restart":       "nothing starts a sandbox again: 'forkd workspace create NAME' keeps one",
	"security-opt":  ownRoot,
	"shm-size":      inGuest,
	"signal":        "'forkd signal ID PID SIGNAL' sends a signal to a process in a sandbox",
	"stop-timeout":  "--timeout kills a command",
	"target":        "name the sandbox: 'forkd ls' lists them",
	"timestamps":    "'forkd logs --since 10m' omits older output; the console has no times",
	"console t":     "'forkd logs --since 10m' omits older output; the console has no times",
	"size-mib":      inRecipe,
	"snapshot-root": "--state-dir sets the directory of all data",
	"state":         "--state-dir sets the directory of all data",
	"tap":           "sandboxes need no tap device: leave it out",
	"tls":           "--ca FILE names the authority of a daemon at https://…",
	"tlscacert":     "--ca FILE names the authority of a daemon at https://…",
	"tmpfs":         inGuest,
	"type":          "leave it out: a sandbox is looked for first, then a snapshot",
	"ulimit":        inGuest,
	"until":         "'forkd logs' and 'forkd events' end with Ctrl-C, or with '| head'",
	"v":             noVolumes,
	"volume":        noVolumes,
	"wait timeout":  "'timeout 60 forkd wait ID' stops waiting after a minute",
}

// flagHint returns the hint for a flag of another program.
func flagHint(command, flag string) string {
	if hint, ok := unknownFlags[command+" "+flag]; ok {
		return hint
	}
	return unknownFlags[flag]
}
