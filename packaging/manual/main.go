// Command manual writes forkd's man pages and shell completions from the definition of the CLI. It
// writes a man page in section 1 for each command, and completion files for bash, zsh and fish.
//
//	go run ./packaging/manual DIR
//
// DIR then has the folders man, bash, zsh and fish. The date of the pages is $SOURCE_DATE_EPOCH
// (reproducible-builds.org), or by default today.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/forkd/forkd/internal/cli"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: manual DIR")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "manual:", err)
		os.Exit(1)
	}
}

// write makes all files in dir.
func write(dir string) error {
	for _, sub := range []string{"man", "bash", "zsh", "fish"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
	}
	root := cli.Command(cli.Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	date, err := pageDate(os.Getenv("SOURCE_DATE_EPOCH"))
	if err != nil {
		return err
	}
	root.InitDefaultCompletionCmd()
	root.DisableAutoGenTag = true
	header := doc.GenManHeader{Section: "1", Source: "forkd " + root.Version, Manual: "forkd", Date: &date}
	if err := doc.GenManTree(root, &header, filepath.Join(dir, "man")); err != nil {
		return err
	}
	return completions(root, dir)
}

// completions writes a file per shell, with the name that the shell searches for.
func completions(root *cobra.Command, dir string) error {
	if err := root.GenBashCompletionFileV2(filepath.Join(dir, "bash", "forkd"), true); err != nil {
		return err
	}
	if err := root.GenZshCompletionFile(filepath.Join(dir, "zsh", "_forkd")); err != nil {
		return err
	}
	return root.GenFishCompletionFile(filepath.Join(dir, "fish", "forkd.fish"), true)
}

func pageDate(epoch string) (time.Time, error) {
	if epoch == "" {
		return time.Now(), nil
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH %q: want seconds since 1970", epoch)
	}
	return time.Unix(seconds, 0).UTC(), nil
}
