package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
)

// Data from a daemon becomes lines of ssh_config and arguments of ssh. A hostile daemon must not
// make ssh run commands on this host.
func TestSSHOfAHostileDaemon(t *testing.T) {
	const id, key = "sb-aaaaaaaaaaaaaaaaaaaaaaaaaa", "ssh-ed25519 AAAA"
	for _, c := range []struct{ address, key, id, refused string }{
		{"127.0.0.1:2222", key, id, ""},
		{"[::1]:2222", key, id, ""},
		{"[127.0.0.1\n\tProxyCommand sh -c 'id'\n\t#]:2222", key, id, "SSH address"},
		{"-oProxyCommand=id:2222", key, id, "SSH address"},
		{"127.0.0.1:22\n\tProxyCommand id", key, id, "SSH address"},
		{"127.0.0.1:0", key, id, "SSH address"},
		{"127.0.0.1:2222", key + "\n\tProxyCommand id", id, "host key"},
		{"127.0.0.1:2222", key, "-oProxyCommand=id", "no sandbox id"},
		{"127.0.0.1:2222", key, id + "\n", "no sandbox id"},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_ = json.NewEncoder(w).Encode(map[string]any{"ssh": map[string]string{"address": c.address, "host_key": c.key}})
		}))
		cl, err := client.New(server.URL, "")
		if err != nil {
			t.Fatal(err)
		}
		f := sshFlags{}
		f.where = server.URL
		got, err := f.target(t.Context(), cl, c.id)
		server.Close()
		if c.refused == "" {
			var out strings.Builder
			if err == nil {
				err = got.print(&out, "box")
			}
			if err != nil || strings.Count(out.String(), "\n") != 4+len(got.options) {
				t.Errorf("%+v: %v\n%s", c, err, out.String())
			}
		} else if err == nil || !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
