package image

import (
	"testing"

	"gopkg.in/yaml.v3"
)

func TestNetworkOfARecipe(t *testing.T) {
	var n Network
	err := yaml.Unmarshal([]byte("{mode: restricted, allow: [example.org], deny: [a.example.org], allow_ech: true}"), &n)
	if err != nil || n.Mode != "restricted" || len(n.Allow) != 1 || len(n.Deny) != 1 || !n.AllowECH {
		t.Errorf("%+v, %v", n, err)
	}
}
