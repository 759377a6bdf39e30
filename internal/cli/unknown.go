package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Hints for several commands.
const (
	standAlone = "forkd's commands have no such prefix, for example 'forkd ls' and 'forkd images'"
	oneHost    = "a daemon serves the sandboxes of one host: FORKD_URL selects the daemon"
	aTerminal  = "'forkd shell ID' starts bash or sh in a sandbox, with this terminal"
	aCopy      = "'forkd fork --from-sandbox ID' starts a copy of a sandbox as it runs"
	noLogin    = "there is no login: FORKD_URL and FORKD_TOKEN select the daemon, and 'forkd token new NAME' makes a token"
	demoThere  = "the demo comes with the source: 'make demo' builds a snapshot, forks it and prints a report"
	theLists   = "'forkd ls' lists sandboxes, 'forkd images' snapshots"
	noPlan     = "there is nothing like it: 'forkd fork TAG -n N' starts sandboxes, 'forkd label' groups them"
)

// elsewhere maps commands of docker, kubectl, E2B's CLI and forkd 0.5 to hints that say how to do
// the same with forkd. It contains no command that exists here.
var elsewhere = map[string]string{
	"container":  standAlone,
	"image":      standAlone,
	"system":     standAlone,
	"checkpoint": "'forkd branch ID TAG' saves a sandbox as it runs, 'forkd rollback ID --to TAG' puts it back",
	"config":     "'forkd cp FILE ID:PATH' copies a file into a sandbox, 'forkd fork -e NAME=VALUE' sets its environment",
	"context":    "FORKD_URL, or --daemon-url after the command, selects the daemon",
	"manifest":   "'forkd snapshot-info TAG' describes a snapshot",
	"network":    "'forkd net ID' says where a sandbox may connect to, 'forkd net set ID' changes it; they share no networks",
	"node":       oneHost,
	"plugin":     "there is nothing like it",
	"scout":      "there is nothing like it",
	"secret":     "'forkd fork TAG --secret HOST:HEADER=env:NAME' adds a header to requests of a sandbox, which never has its value",
	"service":    oneHost,
	"stack":      oneHost,
	"swarm":      oneHost,
	"trust":      "'forkd key trust FILE' makes the daemon trust a key, 'forkd sign' signs a snapshot",
	"buildx":     "'forkd build RECIPE' makes a snapshot; 'forkd cache prune' cleans up after builds",
	"builder":    "'forkd cache ls' and 'forkd cache prune' manage what builds have cached",
	"compose":    noPlan,
	"demo":       demoThere,
	"deploy":     noPlan,
	"merge":      "branches are not merged: 'forkd cp -r' copies files between sandboxes, 'forkd rollback ID --to TAG' goes back to a branch",
	"create":     "'forkd fork TAG' starts a sandbox; 'forkd pause ID' pauses it",
	"import":     "'forkd build docker-archive:FILE' makes a snapshot of a container image that 'docker save' has written",
	"load":       "'forkd build docker-archive:FILE' makes a snapshot of a container image that 'docker save' has written",
	"login":      noLogin,
	"logout":     "there is no login: the token is in the variable FORKD_TOKEN",
	"port":       "'forkd port-forward ID PORT' forwards a port of this host to a sandbox; 'forkd url ID PORT' makes a URL",
	"rename":     "sandboxes have ids: 'forkd label ID name=NAME' marks one; 'forkd workspace create NAME' starts one with a name",
	"restart":    "'forkd rollback ID' puts a sandbox back to its snapshot, running; 'forkd eval --restart ID' replaces its interpreter",
	"save":       "'forkd branch ID' makes a snapshot; 'forkd pack TAG FILE' writes one to an archive",
	"search":     "'forkd images' lists snapshots; 'forkd build' without a known name lists the recipes that come with forkd",
	"serve":      "'forkd daemon' serves the API",
	"tag":        "a snapshot keeps its tag: 'forkd snapshot-compact --from TAG --to NEW' makes a copy under another one",
	"update":     "'forkd limit set ID' replaces the limits of a sandbox, 'forkd net set ID' its network policy",
	"where":      "'forkd info' says where the daemon is, 'forkd snapshot-info TAG' in which directory a snapshot is",
	"wp-bench":   "benchmarks come with the source: 'scripts/bench'",
	"sandbox":    standAlone,
	"sbx":        standAlone,
	"template":   standAlone,
	"tpl":        standAlone,
	"auth":       noLogin,
	"bash":       aTerminal,
	"clone":      aCopy,
	"connect":    aTerminal,
	"delete":     "'forkd kill ID' ends sandboxes, 'forkd rmi TAG' removes snapshots",
	"describe":   "'forkd inspect ID|TAG' prints everything about a sandbox or snapshot",
	"download":   "'forkd cp ID:PATH FILE' copies out of a sandbox",
	"duplicate":  aCopy,
	"expose":     "'forkd port-forward ID PORT' forwards a port of this host to a sandbox; 'forkd url ID PORT' makes a URL",
	"get":        theLists,
	"hibernate":  "'forkd suspend ID' saves a sandbox to disk, 'forkd resume ID' brings it back",
	"list":       theLists,
	"metrics":    "'forkd stats ID' says what a sandbox uses; GET /metrics of the daemon is for Prometheus",
	"replicate":  aCopy,
	"restore":    "'forkd rollback ID --to TAG' puts a sandbox back, 'forkd resume ID' brings a suspended one back",
	"revert":     "'forkd rollback ID --to TAG' puts a sandbox back to a snapshot",
	"sandboxes":  "'forkd ls' lists sandboxes",
	"scale":      noPlan,
	"sh":         aTerminal,
	"snapshots":  "'forkd images' lists snapshots",
	"status":     "'forkd info' says what the daemon has, 'forkd doctor' whether this host can run forkd, 'forkd ls' lists sandboxes",
	"templates":  "'forkd images' lists snapshots",
	"upload":     "'forkd cp FILE ID:PATH' copies into a sandbox",
}

// knownCommand checks the arguments of a command that only has subcommands.
func knownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	unknown := fmt.Sprintf("unknown command %q", strings.TrimSpace(strings.TrimPrefix(cmd.CommandPath(),
		cmd.Root().Name())+" "+args[0]))
	if hint, ok := elsewhere[args[0]]; ok && !cmd.HasParent() {
		return errors.New(unknown + ": " + hint)
	}
	cmd.SuggestionsMinimumDistance = 2 // finds names with typing errors
	var near []string
	for _, name := range cmd.SuggestionsFor(args[0]) {
		near = append(near, fmt.Sprintf("'%s %s'", cmd.CommandPath(), name))
	}
	if len(near) > 0 {
		return fmt.Errorf("%s: did you mean %s?", unknown, strings.Join(near, " or "))
	}
	return errors.New(unknown)
}

// flagError rewrites the error of a flag for users.
func flagError(cmd *cobra.Command, err error) error {
	// If the command is unknown too, report only that.
	if before := cmd.Flags().Args(); !cmd.HasParent() && len(before) > 0 {
		return usageError{knownCommand(cmd, before)}
	}
	var none *pflag.NotExistError
	if errors.As(err, &none) {
		if hint := flagHint(cmd.Name(), none.GetSpecifiedName()); hint != "" {
			return usageError{fmt.Errorf("%w: %s", err, hint)}
		}
	}
	return plainFlagError(err)
}
