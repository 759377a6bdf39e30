package dockerfile

import "github.com/forkd/forkd/internal/ignore"

// Ignore excludes files by patterns in the form of a .dockerignore, such as the patterns of
// --exclude. The zero Ignore excludes nothing.
type Ignore = ignore.Patterns

// NewIgnore returns an Ignore that excludes the files that match patterns.
func NewIgnore(patterns []string) (Ignore, error) { return ignore.New(patterns) }
