// Package client_test belongs to a module like those of the client's users. The module requires
// only the published parts of forkd.
package client_test

import (
	"crypto/rand"
	"os"
	"strings"
	"testing"

	"github.com/forkd/forkd/test/contract"
)

// Variables with the address of the daemon, for the examples of package client.
const (
	urlEnv      = "FORKD_URL"
	tokenEnv    = "FORKD_TOKEN"
	snapshotEnv = "FORKD_CONTRACT_SNAPSHOT"
)

// The Go client passes the contract's scenarios against a daemon. If $FORKD_CONTRACT_TMP is set,
// these are the scenarios for fake VMs.
func TestContract(t *testing.T) {
	scenarios, err := contract.Scenarios()
	if err != nil {
		t.Fatal(err)
	}
	d := contract.Daemon{URL: os.Getenv(urlEnv), Token: os.Getenv(tokenEnv), Snapshot: os.Getenv(snapshotEnv),
		Tmp: os.Getenv("FORKD_CONTRACT_TMP"), File: os.Getenv("FORKD_CONTRACT_FILE"), Fake: true}
	left := "vm"
	if d.Tmp == "" {
		d.Tmp, d.Fake, left = "/tmp", false, "fake"
	}
	for _, s := range scenarios {
		t.Run(s.Name, func(t *testing.T) {
			if s.Needs == left {
				t.Skip("needs ", s.Needs)
			}
			if err := contract.Run(t.Context(), d, s, "go"+strings.ToLower(rand.Text())); err != nil {
				t.Error(err)
			}
		})
	}
}
