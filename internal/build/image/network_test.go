package image

import (
	"slices"
	"strings"
	"testing"
)

func TestRecipeNetwork(t *testing.T) {
	const head = "name: x\nbase: debian:bookworm\n"
	r, err := parseRecipe([]byte(head + "network: public\n"))
	if err != nil || r.Network.Mode != "public" {
		t.Errorf("%+v, %v", r, err)
	}
	r, err = parseRecipe([]byte(head + "network: {allow: [pypi.org, '*.pythonhosted.org'], deny: [10.0.0.0/8]}\n"))
	if err != nil || !slices.Equal(r.Network.Allow, []string{"pypi.org", "*.pythonhosted.org"}) ||
		len(r.Network.Deny) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err = parseRecipe([]byte(head)); err != nil || r.Network != nil {
		t.Errorf("%+v, %v", r, err)
	}
	for text, want := range map[string]string{
		"network: everything":        "network: mode: \"everything\" is not a mode",
		"network: {allow: ['*']}":    "network: allow[0]",
		"network: {modes: [public]}": "unknown field \"modes\"",
		"network: {deny: [a.b]}":     "network: mode: missing",
		"network: {}":                "network: mode: missing",
		"network: [public]":          "network",
	} {
		if _, err := parseRecipe([]byte(head + text + "\n")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
