package cli

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/host/owner"
)

// TestOwnersAreShown lists sandboxes that have the same owner, and then sandboxes that have two
// owners. A client with a label prefix sees no owners.
func TestOwnersAreShown(t *testing.T) {
	prefix, err := owner.ParsePrefix("red/")
	if err != nil {
		t.Fatal(err)
	}
	rig := apirig.Start(t, apirig.Options{Agent: agentHere, Tokens: []auth.Token{{Name: "ci", Scope: auth.Run},
		{Name: "team", Scope: auth.Run}, {Name: "red", Scope: auth.Run, Prefix: prefix}}})
	if _, err := rig.Bake(t.Context(), rig.Parent); err != nil {
		t.Fatal(err)
	}
	t.Setenv(urlEnv, rig.URL)
	fork := func(token string, labels map[string]string) string {
		t.Helper()
		cl, err := client.New(rig.URL, rig.Tokens[token])
		if err != nil {
			t.Fatal(err)
		}
		f, err := cl.Fork(t.Context(), client.ForkRequest{SnapshotTag: rig.Parent.Tag, N: 1, Labels: labels})
		if err != nil {
			t.Fatal(err)
		}
		return f.Sandboxes[0].ID
	}
	shows := func(token string, args []string, want bool, texts ...string) {
		t.Helper()
		t.Setenv(tokenEnv, token)
		var out, errs bytes.Buffer
		if code := Main(args, Stdio{In: strings.NewReader(""), Out: &out, Err: &errs}); code != 0 {
			t.Fatalf("%v: exit code %d, %s", args, code, errs.String())
		}
		for _, text := range texts {
			if regexp.MustCompile("(?m)"+text).MatchString(out.String()) != want {
				t.Errorf("%v: %q is there: %v\n%s", args, text, !want, out.String())
			}
		}
	}

	first := fork("ci", nil)
	shows(apirig.Token, []string{"ls"}, false, "OWNER", "token:ci")
	shows(apirig.Token, []string{"tree"}, false, "owner=")
	shows(apirig.Token, []string{"ls", "-o", "wide"}, true, "READY +OWNER +NETWORK", first+".* token:ci ")
	shows(apirig.Token, []string{"tree", "-o", "wide"}, true, first+"  owner=token:ci$")
	shows(apirig.Token, []string{"tree", "-o", "json"}, true, `"owner": ?"token:ci"`)

	second := fork("team", map[string]string{"red/job": "7"})
	shows(apirig.Token, []string{"ls"}, true, "READY +OWNER$", first+".* token:ci$", second+".* token:team$")
	shows(apirig.Token, []string{"tree"}, true, first+"  owner=token:ci$", second+"  owner=token:team$")
	// All sandboxes with this label have the same owner.
	shows(apirig.Token, []string{"ls", "--label", "red/job=7"}, false, "OWNER", "token:")

	third := fork("red", map[string]string{"red/job": "8"})
	shows(rig.Tokens["red"], []string{"ls"}, true, second, third)
	shows(rig.Tokens["red"], []string{"ls"}, false, "OWNER", "token:")
	shows(rig.Tokens["red"], []string{"ls", "-o", "wide"}, false, "token:")
	shows(rig.Tokens["red"], []string{"tree", "-o", "wide"}, false, "owner=")
	shows(rig.Tokens["red"], []string{"tree", "-o", "json"}, false, "token:")
}
