package e2b

import (
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/host/volume"
)

// Even a daemon without a domain reports a domain for the files of volumes. Without a domain, the
// SDKs would send these files to E2B's servers.
func TestDomainOfContent(t *testing.T) {
	d := (&Server{}).detailOf(volume.Info{ID: "vol-1", Name: "data"}, auth.Principal{})
	if !strings.HasSuffix(d.Domain, ".invalid") {
		t.Errorf("%+v: want a domain that does not exist", d)
	}
}
