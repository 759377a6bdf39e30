package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/forkd/forkd/internal/build/image"
	"github.com/forkd/forkd/internal/vmtest"
)

// protocolFile contains the version of the control protocol, on the line that versionLine matches.
const protocolFile = "internal/proto/vmmproto/vmmproto.go"

var versionLine = regexp.MustCompile(`(?m)^const Version = (\d+)$`)

// earlier builds forkd from two commits in the history of this clone: the last commit that changed
// the control protocol, and the commit before that. If the history is missing or too short, it
// returns no builds, and a string that says why.
func earlier(ctx context.Context, cache, vmlinux string) (builds []vmtest.Build, missing string, err error) {
	out, err := git(ctx, "log", "-1", "--format=%H %P", "-G", "^const Version = ", "--", protocolFile)
	if err != nil {
		return nil, fmt.Sprintf("there is no git history here to build an earlier version from: %v", err), nil
	}
	commits := strings.Fields(string(out))
	if len(commits) < 2 {
		return nil, "the history of this clone is too short to build an earlier version from: git fetch --unshallow", nil
	}
	for _, commit := range commits[:2] {
		b, err := buildCommit(ctx, cache, commit)
		if err != nil {
			return nil, "", fmt.Errorf("build commit %s: %w", commit, err)
		}
		agent, err := os.ReadFile(filepath.Join(filepath.Dir(b.Forkd), "forkd-agent"))
		if err != nil {
			return nil, "", err
		}
		if b.Kernel, err = kernel(image.UserKernel(ctx, cache, vmlinux, agent)); err != nil {
			return nil, "", err
		}
		builds = append(builds, b)
	}
	return builds, "", nil
}

// buildCommit builds forkd from a commit. If the cache has a build of that commit, buildCommit
// returns the build in the cache.
func buildCommit(ctx context.Context, cache, commit string) (b vmtest.Build, err error) {
	text, err := git(ctx, "show", commit+":"+protocolFile)
	if err != nil {
		return b, err
	}
	version := versionLine.FindSubmatch(text)
	if version == nil {
		return b, fmt.Errorf("%s has no line %q", protocolFile, versionLine)
	}
	if b.Protocol, err = strconv.Atoi(string(version[1])); err != nil {
		return b, err
	}
	dir := filepath.Join(cache, "vmtest", "earlier", commit)
	b.Forkd = filepath.Join(dir, "forkd")
	if _, err := os.Stat(b.Forkd); err == nil {
		return b, nil
	}
	fmt.Println("prepare: build forkd of commit", commit)
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return b, err
	}
	tree, err := os.MkdirTemp(filepath.Dir(dir), "tree")
	if err != nil {
		return b, err
	}
	defer os.RemoveAll(tree)
	build := exec.CommandContext(ctx, "/bin/sh", "-c", `git archive "$1" | tar -x -C "$2" && "$2/scripts/build"`, "sh",
		commit, tree)
	if out, err := build.CombinedOutput(); err != nil {
		return b, fmt.Errorf("%w: %s", err, out)
	}
	err = os.Rename(filepath.Join(tree, "bin"), dir)
	if errors.Is(err, fs.ErrExist) { // another process has built it in the meantime
		err = nil
	}
	return b, err
}

func git(ctx context.Context, args ...string) ([]byte, error) {
	out, err := exec.CommandContext(ctx, "git", args...).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("git %s: %w: %s", args[0], err, exit.Stderr)
	}
	return out, err
}
