// Package recipes holds the recipes that come with forkd, built into its binary. It does not read
// or check them: that is package image's business.
package recipes

import "embed"

// FS has one directory per recipe, named like it.
//
//go:embed */recipe.yaml */*.java */*.py */*.sh
var FS embed.FS
