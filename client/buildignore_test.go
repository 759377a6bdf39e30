package client

import (
	"os"
	"testing"

	"gopkg.in/yaml.v3"
)

// A .dockerignore excludes the paths that test/contract lists. The other SDKs share the list.
func TestIgnore(t *testing.T) {
	text, err := os.ReadFile("../test/contract/ignore.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Name, File, Comment string
		In, Out             []string
		Error               bool
	}
	if err := yaml.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		i, err := parseIgnore([]byte(c.File))
		if (err != nil) != c.Error {
			t.Errorf("%s: %v", c.Name, err)
		}
		if err != nil {
			continue
		}
		for want, names := range map[bool][]string{true: c.Out, false: c.In} {
			for _, name := range names {
				if out := i.Out(name); out != want {
					t.Errorf("%s: %q: out is %v", c.Name, name, out)
				}
			}
		}
	}
	if len(cases) < 25 {
		t.Errorf("%d cases", len(cases))
	}
}
