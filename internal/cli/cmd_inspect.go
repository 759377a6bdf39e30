package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

func newInspectCmd() *cobra.Command {
	var c common
	var format string
	cmd := &cobra.Command{
		Use:   "inspect ID|TAG…",
		Short: "Print everything about sandboxes and snapshots, as JSON",
		Long: "Prints an array with an object for each name: a sandbox by its id, a prefix of the id or its workspace,\n" +
			"otherwise a snapshot by its tag. With --format it prints a line for each.",
		Example: "  forkd inspect ID | jq -r '.[0].state'\n  forkd inspect -f '{{.state}} {{json .labels}}' ID",
		Args:    usageArgs(arguments(1, anyNumber)),
		RunE: func(cmd *cobra.Command, names []string) error {
			lines, err := lineTemplate(format)
			if err != nil {
				return usageError{fmt.Errorf("--format: %w", err)}
			}
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				list, err := cl.Sandboxes(ctx)
				if err != nil {
					return err
				}
				found := []any{}
				var errs []error
				for _, name := range names {
					thing, err := inspect(ctx, cl, list, name)
					if err != nil {
						errs = append(errs, err)
						continue
					}
					found = append(found, thing)
				}
				if format == "" {
					return errors.Join(append(errs, writeJSON(cmd.OutOrStdout(), found))...)
				}
				for _, thing := range found {
					errs = append(errs, writeLine(cmd.OutOrStdout(), lines, thing))
				}
				return errors.Join(errs...)
			})
		},
	}
	cmd.Flags().StringVarP(&format, "format", "f", "",
		"Go template with the field names of the JSON output; {{json .FIELD}} prints a value as JSON")
	c.complete(cmd, either(sandboxNames, tags))
	c.register(cmd)
	return cmd
}

// lineTemplate parses the template of --format. If the template names a field that the object's
// JSON lacks, its execution fails, even if the JSON omits the field only because it is empty.
func lineTemplate(text string) (*template.Template, error) {
	return template.New("--format").Option("missingkey=error").Funcs(template.FuncMap{"json": func(v any) (string, error) {
		p, err := json.Marshal(v)
		return string(p), err
	}}).Parse(text)
}

// writeLine prints an object with a template. The template uses the names in the object's JSON.
func writeLine(out io.Writer, t *template.Template, thing any) error {
	p, err := json.Marshal(thing)
	if err != nil {
		return err
	}
	var fields map[string]any
	numbers := json.NewDecoder(bytes.NewReader(p))
	numbers.UseNumber() // keeps numbers as they are written
	if err := numbers.Decode(&fields); err != nil {
		return err
	}
	var line strings.Builder
	if err := t.Execute(&line, fields); err != nil {
		return formatError(err, fields)
	}
	_, err = printLine(out, multiline(line.String()))
	return err
}

// Patterns for errors of package text/template about missing names.
var (
	noEntry = regexp.MustCompile(`at <(\.[^>]*)>: map has no entry for key "([^"]*)"`)
	noField = regexp.MustCompile(`at <(\.[^>]*)>: can't evaluate field (\S+) in type`)
)

// formatError returns an error for a template with a missing name, and suggests a name. Docker's
// names have capital letters and are nested, so they are translated.
func formatError(err error, fields map[string]any) error {
	found := noEntry.FindStringSubmatch(err.Error())
	if found == nil {
		found = noField.FindStringSubmatch(err.Error())
	}
	if found == nil {
		return fmt.Errorf("--format: %w", err)
	}
	names := slices.Sorted(maps.Keys(fields))
	hint := "the fields are " + strings.Join(names, ", ")
	if near := nearest(names, found[2]); near != "" {
		hint = "use {{." + near + "}}"
	} else if near := nearest(names, strings.Split(found[1], ".")[1]); near != "" {
		hint = "use {{." + near + "}}"
	}
	return fmt.Errorf("--format: %s: the output has no field %s: %s", found[1], found[2], hint)
}

// nearest returns the name that the user probably meant, given the text that the user has typed. If
// a name equals this text, it returns this name. If none does, it returns a name that begins with
// the text, or "" if there is no such name.
func nearest(names []string, wrong string) string {
	plain := func(s string) string { return strings.ToLower(strings.ReplaceAll(s, "_", "")) }
	found := ""
	for _, name := range names {
		switch {
		case plain(name) == plain(wrong):
			return name
		case strings.HasPrefix(plain(name), plain(wrong)) && found == "":
			found = name
		}
	}
	return found
}

// inspect returns the sandbox with the given name in the list, or else the snapshot with this name.
func inspect(ctx context.Context, cl *client.Client, list []client.Sandbox, name string) (any, error) {
	id, err := findID(list, name)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(list, func(s client.Sandbox) bool { return s.ID == id }); i >= 0 {
		return list[i], nil
	}
	d, err := cl.Snapshot(ctx, name)
	if client.IsNotFound(err) {
		return nil, fmt.Errorf("%q: neither a sandbox ('forkd ls') nor a snapshot ('forkd images')", name)
	}
	return d, err
}

func newHistoryCmd() *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use:   "history TAG",
		Short: "List the snapshots that a snapshot was made from, the newest first",
		Args:  usageArgs(arguments(1, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return show(cmd, &c, func(ctx context.Context, cl *client.Client) ([]client.SnapshotDetail, error) {
				return history(ctx, cl, args[0])
			}, func(line []client.SnapshotDetail) error {
				return table(cmd, "TAG\tAGE\tMADE BY\tSIZE\tSTATUS", func(row func(...any)) {
					for _, d := range line {
						by := "build"
						if d.Mode != "" {
							by = d.Mode + " branch"
						}
						row(d.Tag, age(d.CreatedAt), by, mib(snapshotBytes(&d)), d.Status)
					}
				})
			})
		},
	}
	c.completeTags(cmd)
	c.register(cmd)
	return cmd
}

// history describes a snapshot and its ancestors. Deleted ancestors are omitted, because their
// descendants do not need them.
func history(ctx context.Context, cl *client.Client, tag string) ([]client.SnapshotDetail, error) {
	d, err := cl.Snapshot(ctx, tag)
	if err != nil {
		return nil, err
	}
	line := []client.SnapshotDetail{d}
	for _, tag := range slices.Backward(d.Ancestors) {
		a, err := cl.Snapshot(ctx, tag)
		switch {
		case client.IsNotFound(err):
		case err != nil:
			return nil, err
		default:
			line = append(line, a)
		}
	}
	return line, nil
}
