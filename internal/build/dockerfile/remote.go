package dockerfile

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"path"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"

	"github.com/forkd/forkd/internal/build/plan"
)

// remoteSource returns the source for an ADD instruction that downloads a file or a repository. If
// src is a file of the build context, remoteSource returns false. The checksum or commit is part of
// the step's key. So a later build can see without a download whether the content has changed.
func remoteSource(src string, c *instructions.AddCommand) (s plan.Source, ok bool, err error) {
	address, fragment, _ := strings.Cut(src, "#")
	switch {
	case strings.HasPrefix(src, "git@"), strings.HasPrefix(src, "ssh://"):
		return s, true, errors.New("a build has no key for ssh: want a repository by https, " +
			"or RUN --mount=type=secret with a key, and git clone")
	case !strings.Contains(address, "://"):
		return s, false, nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return s, true, errors.New("it is no URL")
	}
	if u.User != nil {
		return s, true, errors.New("with a password in it, which would be in the names of steps: " +
			"RUN --mount=type=secret gives one to a command")
	}
	switch {
	case u.Scheme == "git", strings.HasSuffix(u.Path, ".git") && (u.Scheme == "https" || u.Scheme == "http"):
		s.Git, err = gitSource(address, fragment, c)
	case u.Scheme == "https", u.Scheme == "http":
		s.Remote, err = urlSource(u, address, c)
	default:
		err = fmt.Errorf("%s: want a URL of http or https", u.Scheme)
	}
	return s, true, err
}

// hexSizes maps the hash functions that --checksum supports to their number of hex digits.
var hexSizes = map[string]int{"sha256": 64, "sha384": 96, "sha512": 128}

func isHex(text string, size int) bool {
	_, err := hex.DecodeString(text)
	return err == nil && len(text) == size && text == strings.ToLower(text)
}

func urlSource(u *url.URL, address string, c *instructions.AddCommand) (*plan.Remote, error) {
	algorithm, sum, _ := strings.Cut(c.Checksum, ":")
	switch {
	case c.Checksum == "":
		return nil, errors.New("without --checksum a later build cannot tell whether the file has changed: " +
			"want --checksum=sha256:…, or RUN curl")
	case hexSizes[algorithm] == 0 || !isHex(sum, hexSizes[algorithm]):
		return nil, fmt.Errorf("--checksum=%s: want sha256:, sha384: or sha512: and the digits", c.Checksum)
	case c.KeepGitDir != nil:
		return nil, errors.New("--keep-git-dir is for git repositories")
	case c.Unpack != nil && *c.Unpack:
		return nil, errors.New("--unpack is for files of the context: RUN tar unpacks this one")
	}
	name := path.Base(u.Path)
	if name == "/" || name == "." || name == ".." {
		if strings.HasSuffix(c.DestPath, "/") {
			return nil, errors.New("the URL has no name for the file: want a destination with one")
		}
		name = "file"
	}
	return &plan.Remote{URL: address, Name: name, Hash: algorithm, Sum: sum}, nil
}

func gitSource(address, fragment string, c *instructions.AddCommand) (*plan.Git, error) {
	ref, dir, _ := strings.Cut(fragment, ":")
	commit := cmp.Or(c.Checksum, ref)
	switch {
	case !isHex(commit, 40) && !isHex(commit, 64):
		return nil, errors.New("without a commit a later build cannot tell whether the repository has changed: " +
			"want #COMMIT behind the URL or --checksum=COMMIT, with all digits")
	case strings.HasPrefix(ref, "-"):
		return nil, fmt.Errorf("#%s: want a branch, a tag or a commit", ref)
	case c.Unpack != nil && *c.Unpack:
		return nil, errors.New("--unpack is for files of the context")
	}
	g := &plan.Git{URL: address, Ref: cmp.Or(ref, commit), Commit: commit, Keep: c.KeepGitDir != nil && *c.KeepGitDir}
	if dir != "" {
		g.Dir = path.Clean("/" + dir)[1:]
	}
	return g, nil
}
