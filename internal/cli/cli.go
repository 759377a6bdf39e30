// Package cli is the CLI of forkd. The commands are in the files cmd_*.go. Most commands print JSON
// with -o json. Exit codes are documented.
//
// It uses the daemon only through package client, and does not reach sandboxes in any other way.
package cli

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// Stdio holds the input and outputs of a command.
type Stdio struct {
	In  io.Reader
	Out io.Writer
	Err io.Writer
}

// Exit codes. A command that runs a program in a sandbox exits with the code of the program
// instead.
const (
	exitOK    = 0
	exitError = 1 // the command line is correct, but the command has failed
	exitUsage = 2 // the command line is wrong

	exitInterrupted = 130 // by Ctrl-C or SIGTERM
)

// exitCode is the error of a command that has printed all messages itself. It only sets the exit
// code of the process.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// usageError marks a wrong command line.
type usageError struct{ error }

// Main runs the command line in args, which lacks the program's name. It returns the exit code.
func Main(args []string, stdio Stdio) int {
	root := newRoot(stdio)
	root.SetArgs(ungrouped(args))
	cmd, err := root.ExecuteC()
	err = forgiven(cmd, err, stdio.Err)
	var code exitCode
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, &usage):
		printf(stdio.Err, "forkd: %s\nRun '%s --help' for usage.\n", err, cmd.CommandPath())
		return exitUsage
	}
	printf(stdio.Err, "forkd: %s\n", err)
	return exitError
}

// Command returns the command forkd with all of its commands. Package manual makes the man pages
// from it.
func Command(stdio Stdio) *cobra.Command { return newRoot(stdio) }

func newRoot(stdio Stdio) *cobra.Command {
	root := &cobra.Command{
		Use:   "forkd",
		Short: "Fork warm microVMs in milliseconds",
		Long: "Fork warm microVMs in milliseconds. Start here:\n\n" +
			"  forkd quickstart                # from nothing to a first answer in a fork\n" +
			"  forkd doctor                    # check whether VMs can run on this host\n" +
			"  forkd build base                # build a snapshot of the smallest recipe\n" +
			"  forkd run base -- uname -a      # run a command in a temporary sandbox\n" +
			"  ID=$(forkd fork base)           # start a sandbox; try: forkd shell $ID\n" +
			"  forkd branch $ID mine           # save its state; later: forkd rollback $ID --to mine",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          usageArgs(knownCommand),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(stdio.In)
	root.SetOut(stdio.Out)
	root.SetErr(stdio.Err)
	root.PersistentFlags().Bool(noTruncFlag, false, "do not cut tables to the width of the terminal")
	root.SetFlagErrorFunc(flagError)
	root.SetGlobalNormalizationFunc(normalFlag)
	for _, g := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Snapshots:", []*cobra.Command{newBuildCmd(), newParentCmd(), newFromImageCmd(), newImagesCmd(), newTreeCmd(),
			newHistoryCmd(), newSnapshotInfoCmd(),
			newBranchCmd(),
			newSnapshotCmd(), newSnapshotDiffCmd(), newSnapshotCompactCmd(), newPackCmd(), newUnpackCmd(), newPushCmd(),
			newPullCmd(), newCopyCmd(), newSignCmd(), newVerifyCmd(),
			newEncryptCmd(), newDecryptCmd(), newShredCmd(),
			newRmiCmd(), newPruneCmd(),
			newDfCmd()}},
		{"Sandboxes:", []*cobra.Command{newForkCmd(), newSpawnCmd(), newRunCmd(), newLsCmd(), newInspectCmd(), newStatsCmd(),
			newTopCmd(), newPingCmd(),
			newConsoleCmd(), newEventsCmd(), newLabelCmd(), newTTLCmd(), newPauseCmd(), newResumeCmd(), newSuspendCmd(),
			newMoveCmd(), newDrainCmd(),
			newRollbackCmd(), newPromoteCmd(), newTryCmd(), newDiffCmd(), newExportCmd(), newApplyCmd(),
			newWaitCmd(),
			newKillCmd(), newWorkspaceCmd(), newVolumeCmd(), newLimitCmd(), newNetCmd(), newEffectsCmd(), newHooksCmd()}},
		{"Turns of an agent:", []*cobra.Command{newHookCmd(), newTurnCmd(), newTurnsCmd(), newUndoCmd(), newRedoCmd()}},
		{"In a sandbox:", []*cobra.Command{newExecCmd(), newShellCmd(), newEvalCmd(), newCpCmd(), newSyncCmd(),
			newAttachCmd(), newSignalCmd(),
			newPortForwardCmd(), newSSHCmd(), newSSHConfigCmd(), newURLCmd(), newForwardGuestsCmd(), newMCPCmd()}},
		{"This host:", []*cobra.Command{newQuickstartCmd(), newDoctorCmd(), newUICmd(),
			newInfoCmd(), newVersionCmd(), newDaemonCmd(), newRouterCmd(), newTokenCmd(), newSSHKeyCmd(), newKeyCmd(),
			newMachineCmd(),
			newCacheCmd(), newCleanupCmd(), newE2BCmd(), newBenchCmd()}},
	} {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, c := range g.commands {
			c.GroupID = g.title
			root.AddCommand(c)
		}
		root.SetHelpCommandGroupID(g.title)
		root.SetCompletionCommandGroupID(g.title)
	}
	refuseEmpty(root)
	return root
}
