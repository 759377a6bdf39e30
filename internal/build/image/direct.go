package image

import (
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// notInName matches characters that are valid in a container image's name but not in a recipe's
// name.
var notInName = regexp.MustCompile(`[^a-z0-9._-]+`)

// FromContainer returns the recipe of a snapshot that consists of a container image alone. The text
// must be a base in a recipe's syntax: docker://…, oci:… or docker-archive:…. For any other text,
// FromContainer returns false. The recipe is named after the last part of the image's name.
// Relative paths start at the working directory.
func FromContainer(text string) (r *Recipe, ok bool, err error) {
	b, err := parseBase(text)
	if err != nil || b.kind == baseDebian {
		return nil, false, nil
	}
	_, name, _ := strings.Cut(text, ":")
	name, _, _ = strings.Cut(path.Base(name), "@") // without a digest
	name = strings.Trim(notInName.ReplaceAllString(strings.ToLower(strings.TrimSuffix(name, ".tar")), "-"), "-._")
	r = &Recipe{Name: name, Base: text}
	r.setDefaults()
	if r.dir, err = filepath.Abs("."); err != nil {
		return nil, true, err
	}
	if err := r.validate(); err != nil {
		return nil, true, fmt.Errorf("%s: %w", text, err)
	}
	return r, true, nil
}
