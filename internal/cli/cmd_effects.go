package cli

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/forkd/forkd/client"
)

// holdFlags are the flags that hold back requests of new sandboxes.
type holdFlags struct{ client.Hold }

func (h *holdFlags) register(cmd *cobra.Command, f *pflag.FlagSet) {
	f.StringArrayVar(&h.Hosts, "hold-effects", nil,
		"server (a name or *.name) to which requests are held if they may change something (repeatable);\n"+
			"'forkd effects ID' lists them, and ends the hold with --release")
	f.StringVar(&h.Answer, "hold-answer", "",
		"answer to a held request: refuse (an error; default), record (success, although nothing is sent) or wait\n"+
			"(none until the hold ends)")
	completeWords(cmd, "hold-answer", "refuse", "record", "wait")
}

// given returns the hold that the flags set, or nil if no flag is set.
func (h *holdFlags) given() (*client.Hold, error) {
	if len(h.Hosts) > 0 {
		return &h.Hold, nil
	}
	if h.Answer != "" {
		return nil, usageError{errors.New("--hold-answer: want at least one --hold-effects")}
	}
	return nil, nil
}

func newEffectsCmd() *cobra.Command {
	var c common
	var release bool
	cmd := &cobra.Command{
		Use:   "effects ID",
		Short: "List the requests of a sandbox that were held, or end the hold",
		Long: "Lists the held requests to the servers of --hold-effects. --release ends the hold: waiting requests are\n" +
			"sent to their servers, and requests that were refused or recorded stay unsent. A rollback, a suspension or a\n" +
			"resumption empties the list.\n" +
			"'forkd promote CHILD --into ID' needs no release: ID keeps its own network setting, and with it its own hold, if any.",
		Args: usageArgs(arguments(1, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return showOf(cmd, &c, args[0], func(ctx context.Context, cl *client.Client, id string) (client.Effects, error) {
				if release {
					return cl.ReleaseEffects(ctx, id)
				}
				return cl.Effects(ctx, id)
			}, func(e client.Effects) error { return printEffects(cmd, e) })
		},
	}
	cmd.Flags().BoolVar(&release, "release", false, "end the hold")
	c.completeSandboxes(cmd)
	c.register(cmd)
	return cmd
}

func printEffects(cmd *cobra.Command, e client.Effects) error {
	w := cmd.ErrOrStderr()
	if e.Hold != nil {
		printf(w, "forkd: held: %s (%s)\n", strings.Join(e.Hold.Hosts, " "), e.Hold.Answer)
	} else {
		printf(w, "forkd: nothing is held\n")
	}
	if e.Missed > 0 {
		printf(w, "forkd: %s refused and not listed, because the list is full\n",
			count(int(e.Missed), "request was", "requests were"))
	}
	return table(cmd, "#\tTIME\tOUTCOME\tMETHOD\tURL\tBODY", func(row func(...any)) {
		for _, one := range e.List {
			body := one.Body
			if one.BodyBase64 != "" {
				body = "(binary)"
			}
			row(one.ID, time.Unix(one.Unix, 0).Format(time.DateTime), one.Outcome, one.Method, one.URL, oneLine(body))
		}
	})
}
