// Package recipes holds the recipes that come with forkd. They are built into forkd's binary. The
// package does not read or check them. Package image reads and checks the recipes.
package recipes

import "embed"

// FS has one directory per recipe, under the recipe's name.
//
//go:embed */recipe.yaml */*.java */*.py */*.sh
var FS embed.FS
