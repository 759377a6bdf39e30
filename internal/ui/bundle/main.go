// Command bundle makes the files of the web page of package ui from the page's sources. Usage:
// bundle DIR, where DIR is the folder of package ui. The command uses esbuild, and no Node.js. It
// is a module of its own, so that forkd does not depend on esbuild.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/evanw/esbuild/pkg/api"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: bundle DIR")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "bundle:", err)
		os.Exit(1)
	}
}

// write replaces the folder "assets" in dir.
func write(dir string) error {
	files, err := bundle(dir)
	if err != nil {
		return err
	}
	assets := filepath.Join(dir, "assets")
	if err := os.RemoveAll(assets); err != nil {
		return err
	}
	if err := os.MkdirAll(assets, 0o755); err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(assets, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// bundle returns the files of the page, by name.
func bundle(dir string) (map[string][]byte, error) {
	page, err := filepath.Abs(filepath.Join(dir, "page"))
	if err != nil {
		return nil, err
	}
	lib := filepath.Join(page, "lib")
	result := api.Build(api.BuildOptions{
		AbsWorkingDir: page,
		EntryPointsAdvanced: []api.EntryPoint{
			{InputPath: "main.tsx", OutputPath: "main"},
			{InputPath: "main.css", OutputPath: "main"},
			{InputPath: "terminal.ts", OutputPath: "terminal"},
			{InputPath: "lib/xterm.css", OutputPath: "terminal"},
			{InputPath: "charts.ts", OutputPath: "charts"},
			{InputPath: "lib/uplot.css", OutputPath: "charts"},
		},
		Outdir: filepath.Join(page, "out"), // nothing is written to this directory
		Bundle: true, Format: api.FormatESModule, Target: api.ES2022,
		MinifyWhitespace: true, MinifySyntax: true, MinifyIdentifiers: true,
		JSX: api.JSXTransform, JSXFactory: "h", JSXFragment: "Fragment",
		Alias: map[string]string{
			"preact":           filepath.Join(lib, "preact.mjs"),
			"preact/hooks":     filepath.Join(lib, "hooks.mjs"),
			"@xterm/xterm":     filepath.Join(lib, "xterm.mjs"),
			"@xterm/addon-fit": filepath.Join(lib, "addon-fit.mjs"),
			"uplot":            filepath.Join(lib, "uplot.mjs"),
		},
		External:      []string{"./terminal.js", "./charts.js", "icon.svg"},
		LegalComments: api.LegalCommentsNone, // the licenses are files of the page
		Charset:       api.CharsetUTF8,
	})
	if len(result.Errors) > 0 {
		return nil, errors.New(api.FormatMessages(result.Errors, api.FormatMessagesOptions{})[0])
	}
	files := map[string][]byte{}
	for _, f := range result.OutputFiles {
		files[filepath.Base(f.Path)] = f.Contents
	}
	for _, name := range []string{"index.html", "icon.svg", "lib/preact.LICENSE", "lib/xterm.LICENSE",
		"lib/uplot.LICENSE"} {
		content, err := os.ReadFile(filepath.Join(page, name))
		if err != nil {
			return nil, err
		}
		files[filepath.Base(name)] = content
	}
	return files, nil
}
