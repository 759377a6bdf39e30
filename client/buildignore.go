package client

import (
	"bytes"

	"github.com/moby/patternmatcher/ignorefile"

	"github.com/forkd/forkd/internal/ignore"
)

// parseIgnore reads a .dockerignore.
func parseIgnore(text []byte) (ignore.Patterns, error) {
	patterns, err := ignorefile.ReadAll(bytes.NewReader(text))
	if err != nil {
		return ignore.Patterns{}, err
	}
	return ignore.New(patterns)
}
