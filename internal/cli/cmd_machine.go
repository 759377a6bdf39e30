package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/internal/cachedir"
	"github.com/forkd/forkd/internal/emu/tcghost"
)

// machineEnv is the variable that names the emulated host if --name is not given.
const machineEnv = "FORKD_MACHINE"

// superviseVerb is the hidden command that `machine start` runs in the background.
const superviseVerb = "supervise"

func newMachineCmd() *cobra.Command {
	name := os.Getenv(machineEnv)
	if name == "" {
		name = tcghost.DefaultName
	}
	cmd := &cobra.Command{
		Use:   "machine",
		Short: "Run an emulated Linux host with KVM, for hosts without KVM",
		Long: "An emulated Linux host (QEMU, one CPU with nested SVM) in which /dev/kvm works. Slower than hardware,\n" +
			"otherwise the same. It sees forkd's cache directory under the same path as this host.",
		Args: usageArgs(knownCommand),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.PersistentFlags().StringVar(&name, "name", name, "name of the emulated host; default $"+machineEnv)
	open := func() (tcghost.Machine, error) {
		cache, err := cachedir.Dir()
		if err != nil {
			return tcghost.Machine{}, err
		}
		m, err := tcghost.Open(cache, name)
		if err != nil {
			return m, usageError{err}
		}
		return m, nil
	}
	cmd.AddCommand(newMachineStart(open), newMachineStop(open), newMachineStatus(open), newMachineExec(open),
		newMachineSupervise(open))
	return cmd
}

type openMachine func() (tcghost.Machine, error)

func newMachineStart(open openMachine) *cobra.Command {
	o := tcghost.DefaultOptions()
	var output string
	cmd := &cobra.Command{
		Use:   "start",
		Short: "Start the emulated host, unless it is running, and wait until it answers",
		Args:  usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			m, err := open()
			if err != nil {
				return err
			}
			began := time.Now()
			s, err := startMachine(cmd.Context(), m, o, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if output == "json" {
				return writeJSON(cmd.OutOrStdout(), s)
			}
			printf(cmd.OutOrStdout(), "emulated host %s is ready (%.1f s)\n", s.Name, time.Since(began).Seconds())
			return nil
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.MemoryMiB, "memory-mib", o.MemoryMiB, "memory of the emulated host in MiB")
	f.IntVar(&o.DiskGiB, "disk-gib", o.DiskGiB, "size in GiB of the state disk (a sparse file); applies when the disk is created")
	f.DurationVar(&o.HangLimit, "hang-limit", o.HangLimit,
		"silence after which the emulated host counts as hung and is restarted")
	f.StringVar(&o.QEMU, "qemu", o.QEMU, "QEMU program (default: the host's, or one from Debian's backports if that is too old)")
	f.StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

// startMachine starts m. Its supervisor is a process of this program.
func startMachine(ctx context.Context, m tcghost.Machine, o tcghost.Options, progress io.Writer) (tcghost.State,
	error) {
	self, err := os.Executable()
	if err != nil {
		return tcghost.State{}, fmt.Errorf("start machine: %w", err)
	}
	ctx, cancel := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer cancel()
	return m.Start(ctx, o, []string{self, "machine", "--name", m.Name, superviseVerb},
		func(msg string) { printf(progress, "forkd: %s\n", msg) })
}

func newMachineStop(open openMachine) *cobra.Command {
	return &cobra.Command{
		Use:   "stop",
		Short: "Sync the emulated host's disk and switch it off; its state disk is kept",
		Args:  usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := open()
			if err != nil {
				return err
			}
			ran, err := m.Stop(cmd.Context())
			if err != nil {
				return err
			}
			if !ran {
				printf(cmd.OutOrStdout(), "emulated host %s was not running\n", m.Name)
			}
			return nil
		},
	}
}

func newMachineStatus(open openMachine) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show whether the emulated host runs, where it listens, and its last error",
		Args:  usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			m, err := open()
			if err != nil {
				return err
			}
			s, err := m.State()
			if err != nil {
				return err
			}
			if output == "json" {
				return writeJSON(cmd.OutOrStdout(), s)
			}
			printState(cmd.OutOrStdout(), s)
			return nil
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

func printState(w io.Writer, s tcghost.State) {
	printf(w, "host      %s\nphase     %s\n", s.Name, s.Phase)
	if s.Phase == tcghost.Ready {
		printf(w, "since     %s (ready after %d ms)\nmemory    %d MiB\ndaemon    %s\n",
			s.StartedAt.Format(time.RFC3339), s.ReadyMS, s.Options.MemoryMiB, s.DaemonAddr)
	}
	if s.Restarts > 0 {
		printf(w, "restarts  %d\n", s.Restarts)
	}
	if s.LastFailure != "" {
		printf(w, "failure   %s\n", s.LastFailure)
	}
}

func newMachineSupervise(open openMachine) *cobra.Command {
	return &cobra.Command{
		Use:    superviseVerb,
		Hidden: true,
		Short:  "Own the emulated host's QEMU; started by `machine start`",
		Args:   usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := open()
			if err != nil {
				return err
			}
			// Closing the terminal must not end the emulated host.
			signal.Ignore(syscall.SIGHUP, syscall.SIGINT)
			ctx, cancel := signal.NotifyContext(cmd.Context(), syscall.SIGTERM)
			defer cancel()
			return m.Supervise(ctx)
		},
	}
}
